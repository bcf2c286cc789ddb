"""Run the scenes of a mosaic on a cluster, and join their results to one map."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from tqdm.auto import tqdm

from vllm_mmout.errors import InputError, MMOutError, OptionError
from vllm_mmout.geo import download, in_bucket, is_folder, open_raster, place_of
from vllm_mmout.wings.ray.cluster import SCENE, Cluster, row_of
from vllm_mmout.wings.ray.cluster_run import absolute, named_scenes_of
from vllm_mmout.wings.ray.driver_mark import DriverMark
from vllm_mmout.wings.ray.manifest import Manifest, SceneRecord
from vllm_mmout.wings.ray.objects import PARTS, main_last
from vllm_mmout.wings.ray.predictor import RunSettings
from vllm_mmout.wings.ray.setup import setup_key
from vllm_mmout.wings.ray.tasks import this_node
from vllm_mmout.wings.ray.windows import described_by

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.mosaic.plan import MosaicPlan
    from vllm_mmout.engine.mosaic.run import MosaicRun
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.params import OutputParams

_MOSAIC: Final = "mosaic"
"""Value of `SceneRecord.scene` in the record of a mosaic. In a scene's record, the value is the scene's address."""
_RESULTS: Final = "results"
"""Key in `SceneRecord.known`. The value is a list with the addresses of a mosaic's results."""


@dataclass(frozen=True)
class _Settings:
    """Settings of a mosaic whose scenes run on a Ray cluster before they are joined to one map."""

    scenes: tuple[str, ...]
    """Paths or addresses of the scenes, in the order given."""
    grid: str | None
    """Raster file whose grid the joined map uses. None if the user named no such file."""
    file: str
    """File name of the resulting map, or "" to derive it from the name of the first scene."""
    flags: tuple[str, ...]
    """The engine's flags."""
    manifest: Manifest
    run: str
    """Unique name of the run."""

    @property
    def options(self) -> dict[str, Any]:
        """Settings that are stored with the mosaic's result. A later run with the same settings reuses the result."""
        return {"scenes": self.scenes, "grid": self.grid, "file": self.file}

    def plan(self, folder: Path) -> MosaicPlan:
        """Plan how the scenes run and how their results are joined. The joined map will be written to ``folder``.

        Raise MMOutError if the settings are invalid.
        """
        from vllm_mmout.commands.engine import binding_of
        from vllm_mmout.engine.mosaic.mosaic import Mosaic, as_mosaic
        from vllm_mmout.engine.mosaic.plan import Limits, MosaicPlan

        binding = cast("Binding", binding_of(self.manifest.model, self.flags))
        params = msgspec.structs.replace(self.manifest.params, path=f"{folder}{os.sep}{self.file}")
        asked = as_mosaic(Mosaic(self.scenes, grid=self.grid), params)
        if asked is None:  # cannot happen: a Mosaic asks for a mosaic
            raise OptionError("no mosaic was asked for")
        return MosaicPlan.of(binding, *asked, Limits())


@dataclass(frozen=True)
class _Plan:
    """Plan of a mosaic: the options of its scenes, or an error message if the mosaic is impossible."""

    params: OutputParams | None = None
    """Options of the scenes."""
    options: Mapping[str, dict[str, Any]] | None = None
    """Dict from a scene's path or address to the options that only this scene has, such as ``window``."""
    error: str = ""


def _planned(settings: _Settings) -> _Plan:
    try:
        with TemporaryDirectory() as folder:
            plan = settings.plan(Path(folder))
    except MMOutError as error:
        return _Plan(error=str(error))
    shared = plan.scene_params
    windows = {scene.data: scene.params(shared).window for scene in plan.scenes}
    return _Plan(shared, {name: {} if each is None else {"window": [*each]} for name, each in windows.items()})


def _joined(settings: _Settings, records: Mapping[str, SceneRecord]) -> SceneRecord:
    """Join the results of a mosaic's scenes to one map. Store the mosaic's outcome, and return it."""
    from vllm_mmout.engine.mosaic.run import MosaicRun

    manifest = settings.manifest
    facts: dict[str, Any] = {
        "scene": _MOSAIC,
        "options": settings.options,
        "seconds": sum(record.seconds for record in records.values()),
        "node": this_node(),
    }
    try:
        with manifest.objects.temporary_folder(settings.run) as folder:
            with closing(MosaicRun(settings.plan(folder), folder)) as run:
                for index, scene in enumerate(run.plan.scenes):
                    _take(run, index, records[scene.data])
                result = run.result(_MOSAIC)
            record = SceneRecord(**facts, **_moved(settings, folder, result))
    except MMOutError as error:
        record = SceneRecord(**facts, error=str(error))
    manifest.write(record)
    return record


def _take(run: MosaicRun, index: int, record: SceneRecord) -> None:
    """Add a scene's stored result to the mosaic that ``run`` makes. ``index`` is the scene's index in the mosaic."""
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.stored import StoredRaster

    if record.error is not None:
        run.failed(index, InputError(record.error))
        return
    path = Path(run.params(index).path or "")
    source = place_of(record.files[0].address)
    if isinstance(source, Path):
        shutil.copyfile(source, path)
    else:
        download(source, path)
    with open_raster(path) as raster:
        described = described_by(raster, record.known)
        described["georeference"], described["metadata"] = raster.georeference, raster.metadata
        output = StoredRaster(path, **described)
    run.take(index, MultimodalRequestOutput("", output, [], 0, finished=True, assumed=record.assumed))


def _moved(settings: _Settings, folder: Path, result: MultimodalRequestOutput) -> dict[str, Any]:
    """Move the files of a mosaic's map from ``folder`` to the results folder.

    Return the fields ``files``, ``assumed`` and ``known`` of the mosaic's `SceneRecord`. Raise InputError if a file
    would replace an input scene.
    """
    objects = settings.manifest.objects
    files = main_last(file for file in folder.iterdir() if file.is_file())
    for file in files:
        if (address := objects.address(file.name)) in settings.scenes:
            raise InputError(f"the result would be written over its own input {address}; choose another -o")
    outputs = result.outputs.values() if isinstance(result.outputs, dict) else [result.outputs]
    printed = [objects.address(Path(output.path).name) for output in outputs]
    moved = tuple(objects.move_in(file, file.name) for file in files)
    return {"files": moved[::-1], "assumed": result.assumed, "known": {_RESULTS: printed}}


class MosaicOnCluster:
    """Mosaic whose scenes run on a cluster. When the same command runs again, it skips the scenes that are done."""

    def __init__(self, options: argparse.Namespace, params: OutputParams, cluster: Cluster) -> None:
        out = absolute(options.out)
        folder, file = (out, "") if is_folder(options.out) or not PurePosixPath(out).suffix else _split(out)
        grid = options.mosaic_grid if isinstance(options.mosaic_grid, str) else None
        self._cluster = cluster
        model = absolute(options.model, only_if_there=True)
        self._settings = _Settings(
            tuple(scene for scene, _ in named_scenes_of(options.inputs)),
            None if grid is None else absolute(grid),
            file,
            tuple(options.engine_flags),
            Manifest(folder, model, params, setup_key(model, options.engine_flags)),
            secrets.token_hex(8),
        )
        self._mark = DriverMark(self._settings.manifest.objects)

    def status(self) -> int:
        """Make the mosaic, and return the exit status for ``vllm-mmout run``: 1 if the mosaic failed, else 0.

        Scenes whose outcomes are stored do not run again.
        """
        with self._mark.held():
            manifest = self._settings.manifest
            record = manifest.find(_MOSAIC, self._settings.options)
            if record is None:
                with self._cluster.connected():
                    record = self._made()
            else:
                print("the mosaic is done already", file=sys.stderr)
            manifest.report([record])
        for text in record.assumed:
            print(f"warning: the mosaic: {text}", file=sys.stderr)
        if record.error is not None:
            print(record.error, file=sys.stderr)
            return 1
        for address in record.known[_RESULTS]:
            print(address)
        return 0

    def _made(self) -> SceneRecord:
        settings = self._settings
        plan = self._cluster.call("plan a mosaic", _planned, settings)
        if plan.params is None or plan.options is None:
            return SceneRecord(scene=_MOSAIC, options=settings.options, error=plan.error)
        parts = Manifest(settings.manifest.out, settings.manifest.model, plan.params, settings.manifest.setup)
        records: dict[str, SceneRecord] = {}
        with tqdm(total=len(plan.options), unit="scene", disable=not sys.stderr.isatty()) as bar:
            for record in self._of_scenes(parts, plan.options):
                self._mark.check()
                records[record.scene] = record
                bar.update()
        made = self._cluster.call("join a mosaic", _joined, settings, records)
        if made.error is None:
            for record in records.values():
                parts.forget(record)
        return made

    def _of_scenes(self, parts: Manifest, options: Mapping[str, dict[str, Any]]) -> Iterator[SceneRecord]:
        """Yield the outcome of each scene. Scenes without a stored outcome run on the cluster."""
        settings = self._settings
        left = []
        for (scene, own), record in zip(options.items(), parts.done(options.items()), strict=True):
            if record is None:
                left.append(row_of(scene, f"{PARTS}/{parts.key(scene, own)}", own))
            else:
                yield record
        if left:
            job = RunSettings(settings.manifest.model, parts.params, settings.flags, SCENE, parts, settings.run)
            yield from self._cluster.records(left, job)


def _split(out: str) -> tuple[str, str]:
    """Split a result's path or address into folder and file name. Raise OptionError if a local folder is missing."""
    folder, _, name = out.rpartition("/")
    if not in_bucket(out) and not Path(folder or "/").is_dir():
        raise OptionError(f"-o {out}: there is no folder {folder}; make it first")
    return f"{folder}/", name
