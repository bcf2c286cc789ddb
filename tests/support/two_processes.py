"""``pytest --two-processes``: a second pytest runs a part of the tests, and the first one reports all.

Both collect the same tests. The first takes a file of tests after the other from the beginning, where broken units
show, the second from the end, where servers are started; who marks a file as taken runs it. What a session makes once,
engines and servers, is so made by one of them, but where they meet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from urllib.parse import quote

import pytest

SHARED = "MMOUT_TEST_SHARED"
"""Names the folder that both know, in the environment of the second."""
END_S = 300
REPORTS, PRINTED = "reports.jsonl", "printed.txt"


def plugin():
    """What this process needs to be one of the two."""
    folder = os.environ.get(SHARED)
    return First() if folder is None else Second(Path(folder))


class _Sharing:
    """Runs the tests that this process takes."""

    folder: Path

    def _groups(self, session):
        """The tests of each file, in the order in which they are taken; those of engines come apart."""
        groups = groupby(session.items, lambda item: (item.path, item.get_closest_marker("engine") is not None))
        return [(quote(f"{path} {engine}", safe=""), list(items)) for (path, engine), items in groups]

    def _taken(self, groups):
        """The tests of groups that nobody has taken before, one by one."""
        for name, items in groups:
            try:
                os.close(os.open(self.folder / name, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            yield from items

    def _run(self, session, groups):
        """As pytest runs them: a test is told which one comes next, so that no fixture is ended too early."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        taken = self._taken(groups)
        item = next(taken, None)
        while item is not None:
            following = next(taken, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following


class First(_Sharing):
    """Starts the second, and reports its tests after its own."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Run tests until all are taken, then wait for the second."""
        if session.config.option.collectonly:
            return None
        with TemporaryDirectory() as folder:  # in this session's own; the second makes one beside that
            self.folder = Path(folder)
            reports, printed = self.folder / REPORTS, self.folder / PRINTED
            reports.touch()
            command = [sys.executable, "-m", "pytest", *session.config.invocation_params.args, "-p", "no:cacheprovider"]
            with printed.open("wb") as output:
                second = subprocess.Popen(
                    command,
                    env={**os.environ, SHARED: folder, "TMPDIR": str(Path(gettempdir()).parent)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # by which others know what it starts from what this process starts
                )
            try:
                self._run(session, self._groups(session))
                failed = self._report(session.config, second, reports)
            finally:
                _end(second)
            if second.returncode != (pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK):
                said = printed.read_text(errors="replace")
                raise RuntimeError(f"the second process ended with {second.returncode}:\n{said}")
        return True

    @staticmethod
    def _report(config, second, file):
        """Report what the second writes down until it ends; whether anything failed."""
        failed, rest = False, ""
        with file.open() as lines:
            while True:
                ended = second.poll() is not None  # asked first: what it wrote before is there
                for line in iter(lines.readline, ""):
                    rest += line
                    if not rest.endswith("\n"):  # the end of it is being written
                        continue
                    data, rest = json.loads(rest), ""
                    if isinstance(data["longrepr"], list):  # why it was skipped, a tuple before it was JSON
                        data["longrepr"] = tuple(data["longrepr"])
                    report = config.hook.pytest_report_from_serializable(config=config, data=data)
                    config.hook.pytest_runtest_logreport(report=report)
                    failed = failed or report.failed
                if ended:
                    return failed
                time.sleep(0.2)


def _end(process):
    """Have a process that runs still end what it has started, and then itself."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Second(_Sharing):
    """Runs tests from the end, and writes down what came of them."""

    def __init__(self, folder):
        self.folder = folder

    def pytest_configure(self, config):
        """Know how reports are written."""
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Run tests until all are taken."""
        self._run(session, reversed(self._groups(session)))
        return True

    def pytest_runtest_logreport(self, report):
        """One line of JSON, whole."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with (self.folder / REPORTS).open("ab", buffering=0) as file:
            file.write(json.dumps(data).encode() + b"\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """End well where there was nothing to do."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
