"""Two workers of pytest-xdist share the tests so that what a session starts, engines and servers, is started once.

A unit of work is a file of tests, or all tests of one engine of the session. Workers collect, the first process hands
out: they write down what belongs together, since an item's marks do not come with its id.

An engine ends after the last test of a unit that asks for it: all of them at once would fill the memory.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ENGINE = re.compile(r"(?P<server>(?:\w+_)?server)|(?:mp_)?llm")
"""Names of the session's fixtures that start an engine or a server."""


def engines(item: pytest.Item) -> set[str]:
    """The session's fixtures of engines and servers that a test asks for."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {name for name in (*item.fixturenames, *map(str, parameters)) if ENGINE.fullmatch(name)}
    return {name for name in names if _is_of_session(item, name)}


def unit(item: pytest.Item) -> str:
    """What a test is run with: "servers", the fixture of its engine, or its file."""
    names = engines(item)
    if any(ENGINE.fullmatch(name)["server"] for name in names):
        return "servers"
    return max(names, default=_file(item))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _is_of_session(item: pytest.Item, fixture: str) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.get(fixture)
    return not definitions or definitions[-1].scope == "session"  # one that only a parameter names is not listed


class Scheduling(LoadScopeScheduling):
    """Hands out units in the order of collection."""

    def __init__(self, config: pytest.Config, log: object, units: Path, prepare: Callable[[], object]) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._file, self._prepare = units, prepare

    def schedule(self) -> None:
        """Hand out the first tests, and prepare the servers of later ones meanwhile."""
        if self.collection is None and "servers" in self._units.values():
            threading.Thread(target=self._prepare, daemon=True).start()
        super().schedule()

    @cached_property
    def _units(self) -> dict[str, str]:
        return json.loads(self._file.read_text())

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]


class Plugin:
    """Part of the first process and of each worker.

    Args:
        prepare: the first process calls it in a thread before the first test of a run with servers.

    """

    def __init__(self, prepare: Callable[[], object] = lambda: None) -> None:
        self._prepare = prepare
        self._units = Path(tempfile.gettempdir(), "units.json")
        self._last: dict[pytest.Item, list[str]] = {}

    def pytest_configure_node(self, node) -> None:
        """Tell a worker where to write."""
        node.workerinput["units"] = str(self._units)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Scheduling:
        """Known when all workers have collected."""
        return Scheduling(config, log, self._units, self._prepare)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Collect from the last file to the first in every second worker.

        In a fresh clone pytest rewrites the assertions of all files, which takes as long as all imports. Workers that
        meet in the middle read the other half from the cache.
        """
        report = yield
        number = int(getattr(collector.config, "workerinput", {}).get("workerid", "gw0").removeprefix("gw"))
        if number % 2 and isinstance(collector, pytest.Directory):
            report.result = report.result[::-1]
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        """Sort the tests: units without engines first, then the others by falling size.

        A broken test without an engine shows soon, and the largest unit must not end alone. Within a unit, files that
        ask for the same servers are neighbours, and tests with the marker ``timing`` come last.
        """
        items.sort(key=_file)  # the same in all workers, before other plugins look at the order
        yield
        units, asked = {item: unit(item) for item in items}, {item: engines(item) for item in items}
        sizes = Counter(units.values())
        marked = {units[item] for item in items if item.get_closest_marker("engine") is not None}
        by_file: dict[str, set[str]] = {}
        for item in items:
            by_file.setdefault(_file(item), set()).update(asked[item])
        together = {file: sorted(names) for file, names in by_file.items()}

        def place(item: pytest.Item) -> tuple[bool, int, bool, list[str]]:
            with_engine, timing = units[item] in marked, item.get_closest_marker("timing") is not None
            servers = together[_file(item)] if with_engine else []
            return with_engine, -sizes[units[item]] * with_engine, timing, servers

        items.sort(key=place)
        last = {(units[item], name): item for item in items for name in asked[item]}
        for (_, name), item in last.items():
            self._last.setdefault(item, []).append(name)
        if hasattr(config, "workerinput"):
            text = json.dumps({item.nodeid: units[item] for item in items})
            Path(config.workerinput["units"]).write_text(text)  # each the same, before any is asked for

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """End what no later test of the unit asks for, and what depends on it."""
        for name in self._last.get(item, ()):
            for definition in item.session._fixturemanager.getfixturedefs(name, item) or ():
                definition.finish(item._request)
