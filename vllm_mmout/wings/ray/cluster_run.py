"""Implement ``vllm-mmout run --ray``: run many scenes on a Ray cluster, and write a report."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TextIO

from tqdm.auto import tqdm

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import address_fault, in_bucket, is_address, key_fault, scenes_below, without_secrets
from vllm_mmout.models.inputs.input_forms import name_of
from vllm_mmout.wings.ray.cluster import SCENE, Cluster, row_of
from vllm_mmout.wings.ray.driver_mark import DriverMark
from vllm_mmout.wings.ray.join import cut_large_scenes
from vllm_mmout.wings.ray.manifest import Manifest, SceneRecord
from vllm_mmout.wings.ray.predictor import RunSettings
from vllm_mmout.wings.ray.setup import setup_key

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams


class ClusterRun:
    """Run of many scenes on a cluster. When the same command runs again, it skips the scenes that are done."""

    def __init__(self, options: argparse.Namespace, params: OutputParams, cluster: Cluster) -> None:
        out = absolute(options.out)
        if not in_bucket(out) and Path(out).is_file():
            raise OptionError(f"-o {options.out} is a file; name a folder, or an address in a bucket")
        self._split: int | None = options.ray_split
        self._cluster = cluster
        self._names = names_of(options.inputs)
        model = absolute(options.model, only_if_there=True)
        self._manifest = Manifest(out, model, params, setup_key(model, options.engine_flags))
        self._mark = DriverMark(self._manifest.objects)
        run = secrets.token_hex(8)
        self._job = RunSettings(model, params, tuple(options.engine_flags), SCENE, self._manifest, run)

    def status(self) -> int:
        """Return the exit status of the run, after running all unfinished scenes: 1 if a scene failed, otherwise 0."""
        with self._mark.held():
            return self._status()

    def _status(self) -> int:
        faults = {scene: fault for scene, name in self._names.items() if (fault := _fault(scene, name)) is not None}
        records = {scene: SceneRecord(scene=_printable(scene), error=fault) for scene, fault in faults.items()}
        possible = [scene for scene in self._names if scene not in faults]
        done = zip(possible, self._manifest.done((scene, {}) for scene in possible), strict=True)
        records |= {scene: record for scene, record in done if record is not None}
        if len(records) > len(faults):
            print(f"{len(records) - len(faults)} of {len(self._names)} scenes are done already", file=sys.stderr)
        left = {scene: name for scene, name in self._names.items() if scene not in records}
        out = sys.stdout  # while connected, standard output is redirected to standard error for Ray's own prints
        for fault in faults.values():
            tqdm.write(fault, file=sys.stderr)
        bar = tqdm(total=len(self._names), initial=len(records), unit="scene", disable=not sys.stderr.isatty())
        with bar, self._cluster.connected() if left else bar:
            for record in self._run_scenes(left):
                self._mark.check()
                records[record.scene] = record
                _show(record, out)
                bar.update()
        self._mark.renew()
        self._mark.check()  # another driver may have started since the last record
        report = self._manifest.report(records[scene] for scene in self._names)
        if assumed := sum(bool(record.assumed) for record in records.values()):
            print(
                f"warning: something was assumed about {assumed} of {len(records)} scenes, see {report}",
                file=sys.stderr,
            )
        failed = sum(record.error is not None for record in records.values())
        if failed:
            print(f"{failed} of {len(records)} scenes failed; {report} says why", file=sys.stderr)
        return 1 if failed else 0

    def _run_scenes(self, names: Mapping[str, str]) -> Iterator[SceneRecord]:
        """Run scenes on the cluster, and yield the outcome of each scene. ``names`` maps scenes to result names.

        With ``--ray-split``, large scenes are cut into windows, and the windows' results are joined.
        """
        if not names:
            return
        cut = cut_large_scenes(self._cluster, self._job, list(names.items()), self._split) if self._split else {}
        rows = [row_of(scene, name) for scene, name in names.items() if scene not in cut]
        rows += [row_of(scene.scene, *window) for scene in cut.values() for window in scene.rows()]
        for record in self._cluster.records(rows, self._job):
            scene = cut.get(record.scene)
            if scene is None:
                yield record
            elif scene.add_record(record):
                yield scene.joined(self._cluster, self._manifest, self._job.run)


def names_of(inputs: Sequence[str]) -> dict[str, str]:
    """Return a dict that maps each scene's path or URL to the name of its result files, without suffix.

    ``inputs`` are paths or URLs of scenes, or of folders with scenes if they end in "/". Raise OptionError if two
    scenes have the same name.
    """
    named_scenes = named_scenes_of(inputs)
    names = [name for _, name in named_scenes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"several scenes are called {', '.join(twice)}; their results would overwrite each other")
    return dict(named_scenes)


def named_scenes_of(inputs: Sequence[str]) -> list[tuple[str, str]]:
    """Return (scene, result name) for each scene in ``inputs``. Result files have the result name plus a suffix."""
    named_scenes = []
    for input_ in inputs:
        if not input_.endswith("/"):
            named_scenes.append((absolute(input_), _stem(input_) if in_bucket(input_) else name_of(input_)))
            continue
        root = absolute(input_)
        scenes = scenes_below(root)
        if not scenes:
            raise InputError(f"there is no scene below {without_secrets(input_)}; name a folder with GeoTIFFs in it")
        for scene in scenes:
            folder, slash, file = scene.removeprefix(f"{root.rstrip('/')}/").rpartition("/")
            named_scenes.append((scene, f"{folder}{slash}{_stem(file)}"))
    return named_scenes


def _stem(address: str) -> str:
    """Return a file's name without its folder and suffix."""
    return PurePosixPath(address.rpartition("/")[2]).stem


def _fault(scene: str, name: str) -> str | None:
    """Check a scene's address and result name by the rules of object stores. Return an error message or None."""
    fault = address_fault(scene) if in_bucket(scene) else None
    if fault is None and (why := key_fault(name)) is not None:
        fault = f"{_printable(scene)!r} {why}, which is not allowed in the name of a result; rename the scene"
    return fault


def _printable(scene: str) -> str:
    """Escape invalid UTF-8 bytes in a scene's path or address, so that the text can be stored in JSON."""
    return scene.encode(errors="backslashreplace").decode()


def absolute(path: str, *, only_if_there: bool = False) -> str:
    """Make a local path absolute. Return a URL, or an address in a bucket, unchanged.

    With ``only_if_there=True``, also return the path of a missing file unchanged, as it may be the name of a model.
    """
    if is_address(path) or in_bucket(path) or (only_if_there and not Path(path).exists()):
        return path
    end = "/" if path.endswith("/") else ""
    return f"{Path(path).absolute()}{end}"


def _show(record: SceneRecord, out: TextIO) -> None:
    """Print the path of a scene's main result file to ``out``, or the scene's error to standard error."""
    if record.error is None:
        tqdm.write(record.files[0].address, file=out)
    else:
        tqdm.write(f"{without_secrets(record.scene)}: {record.error}", file=sys.stderr)
