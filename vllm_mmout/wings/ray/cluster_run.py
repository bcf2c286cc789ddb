"""ClusterRun: one start of ``vllm-mmout run --ray``, from the list of scenes to the report."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec
import ray
import ray.data
from tqdm.auto import tqdm

from vllm_mmout.errors import InputError, MMOutError, OptionError
from vllm_mmout.geo import file_stem, in_bucket, is_address, scenes_below, without_secrets
from vllm_mmout.wings.ray.join import planned
from vllm_mmout.wings.ray.manifest import Manifest, Record
from vllm_mmout.wings.ray.pipeline import mapped
from vllm_mmout.wings.ray.predictor import NAME, OPTIONS, RECORD, Job

if TYPE_CHECKING:
    from ray.data import Dataset

    from vllm_mmout.params import OutputParams

_SCENE: Final = "scene"
_BATCH: Final = 4
"""Scenes that an engine works on at once: as many are cut into tiles at once in any case."""


class ClusterRun:
    """A run on a cluster; the same command again goes on with what is left of it."""

    def __init__(self, options: argparse.Namespace, params: OutputParams) -> None:
        out = _absolute(options.out)
        if not in_bucket(out) and Path(out).is_file():
            raise OptionError(f"-o {options.out} is a file; name a folder, or an address in a bucket")
        self._options = options
        self._names = names_of(options.inputs)
        self._manifest = Manifest(out, _absolute(options.model, only_if_there=True), params)
        run = secrets.token_hex(8)
        self._job = Job(self._manifest.model, params, tuple(options.engine_flags), _SCENE, self._manifest, run)

    def status(self, address: str | None) -> int:
        """Run it; gives the exit status."""
        found = self._manifest.done((scene, {}) for scene in self._names)
        records = {record.scene: record for record in found if record is not None}
        if records:
            print(f"{len(records)} of {len(found)} scenes are done already", file=sys.stderr)
        left = {scene: name for scene, name in self._names.items() if scene not in records}
        out = sys.stdout  # what Ray itself prints goes to stderr meanwhile
        bar = tqdm(total=len(found), initial=len(records), unit="scene", disable=not sys.stderr.isatty())
        with bar, _connected(address) if left else bar:
            for record in self._made(left):
                records[record.scene] = record
                _show(record, out)
                bar.update()
        report = self._manifest.report(records[scene] for scene in self._names)
        failed = sum(record.error is not None for record in records.values())
        if failed:
            print(f"{failed} of {len(records)} scenes failed; {report} says why", file=sys.stderr)
        return 1 if failed else 0

    def _made(self, names: Mapping[str, str]) -> Iterator[Record]:
        """Run scenes; those that are cut into windows are joined as soon as all of these are there."""
        if not names:
            return
        split = self._options.ray_split
        cut = planned(self._job, list(names.items()), split) if split else {}
        rows = [row_of(scene, name) for scene, name in names.items() if scene not in cut]
        rows += [row_of(scene.scene, *window) for scene in cut.values() for window in scene.rows()]
        for record in self._run(rows):
            scene = cut.get(record.scene)
            if scene is None:
                yield record
            elif scene.take(record):
                yield scene.joined(self._manifest, self._job.run)

    def _run(self, rows: Sequence[Mapping[str, str]]) -> Iterator[Record]:
        options = self._options
        dataset = dataset_of(
            rows, self._job, workers=options.ray_workers, num_cpus=options.ray_cpus, num_gpus=options.ray_gpus
        )
        for row in dataset.iter_rows():
            yield msgspec.json.decode(row[RECORD], type=Record)


def dataset_of(rows: Sequence[Mapping[str, str]], job: Job, **places: Any) -> Dataset:
    """Scenes with the column `RECORD`, which says what became of each; ``places`` are those of `predict`."""
    ray.data.DataContext.get_current().enable_progress_bars = False  # the command has its own
    scenes = ray.data.from_items(list(rows), override_num_blocks=-(-len(rows) // _BATCH))
    dataset = mapped(scenes, job, batch_size=_BATCH, **places)
    dataset.set_name("scenes")
    return dataset


def names_of(inputs: Sequence[str]) -> dict[str, str]:
    """The scenes that a command names, each with the name of its result below the folder of results."""
    named = []
    for given in inputs:
        if not given.endswith("/"):
            named.append((_absolute(given), file_stem(given)))
            continue
        root = _absolute(given)
        found = scenes_below(root)
        if not found:
            raise InputError(f"there is no scene below {without_secrets(given)}; name a folder with GeoTIFFs in it")
        for scene in found:
            below = PurePosixPath(scene.removeprefix(root).lstrip("/"))
            named.append((scene, str(below.with_name(file_stem(scene)))))
    names = [name for _, name in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"several scenes are called {', '.join(twice)}; their results would overwrite each other")
    return dict(named)


def _absolute(given: str, *, only_if_there: bool = False) -> str:
    """A path as every node finds it; addresses, and names of models, as they are."""
    if is_address(given) or in_bucket(given) or (only_if_there and not Path(given).exists()):
        return given
    end = "/" if given.endswith("/") else ""
    return f"{Path(given).absolute()}{end}"


def row_of(scene: str, name: str, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """A scene, or a window of one, as a row."""
    return {_SCENE: scene, NAME: name, OPTIONS: msgspec.json.encode(options or {}, order="sorted").decode()}


def _show(record: Record, out: TextIO) -> None:
    """Print the file of a scene, or why there is none."""
    if record.error is None:
        tqdm.write(record.files[0].address, file=out)
    else:
        tqdm.write(f"{without_secrets(record.scene)}: {record.error}", file=sys.stderr)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Be connected to the cluster; an error of Ray's is one of ours, and what it prints is no result."""
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its lines would stand among the results
        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise MMOutError(f"there is no cluster of Ray at {address}: {error}; start one, or leave it out") from error
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ray.exceptions.RayError as error:
        raise MMOutError(f"the run ended before it was done, and can be started again: {_cause(error)}") from error
    finally:
        if ours:
            ray.shutdown()


def _cause(error: BaseException) -> str:
    """What was raised on a node, without its frames."""
    cause = getattr(error, "cause", None) or error.__cause__
    return str(error) if cause is None else _cause(cause)
