"""Cut large scenes into windows, which a Ray cluster runs in parallel, and join the windows' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from vllm_mmout.errors import InputError, MMOutError, OptionError
from vllm_mmout.wings.ray.manifest import Manifest, SceneRecord
from vllm_mmout.wings.ray.objects import PARTS, main_last
from vllm_mmout.wings.ray.tasks import this_node
from vllm_mmout.wings.ray.windows import ScenePart, joined, parts_of

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.wings.ray.cluster import Cluster
    from vllm_mmout.wings.ray.predictor import RunSettings


@dataclass
class CutScene:
    """Large scene that is cut into windows. Each window is a row of the Ray dataset on which the model runs."""

    scene: str
    name: str
    size: tuple[int, int]
    """Height and width of the scene in pixels."""
    parts: list[ScenePart]
    area: PlacedArea | None = None
    """Area of interest in pixels of the scene, or None. Pixels of the result outside this area are nodata."""
    records: dict[int, SceneRecord] = field(default_factory=dict)
    """Outcomes of the windows that have run. Each key is a window's index in ``parts``, the list of the scene's
    windows."""

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Return a row of the Ray dataset for each window: the name of the window's result, and its options."""
        named = enumerate(self.parts)
        return [(f"{PARTS}/{self.name}-{number}", _options(part)) for number, part in named]

    def add_record(self, record: SceneRecord) -> bool:
        """Store the outcome of a window. Return True if the outcomes of all windows are stored now."""
        windows = [_options(part)["window"] for part in self.parts]
        self.records[windows.index(record.options["window"])] = record
        return len(self.records) == len(self.parts)

    def joined(self, cluster: Cluster, manifest: Manifest, run: str) -> SceneRecord:
        """Join the results of all windows, and return the outcome of the scene.

        If a window failed, nothing is joined, and the scene's outcome is the window's error. The results are joined on
        any node of the cluster.
        """
        failed = [record for _, record in sorted(self.records.items()) if record.error is not None]
        seconds = sum(record.seconds for record in self.records.values())
        if failed:
            record = SceneRecord(scene=self.scene, error=failed[0].error, seconds=seconds, node=failed[0].node)
            manifest.write(record)
            return record
        return cluster.call(f"join {self.name}", _join, self, manifest, run)


def _options(part: ScenePart) -> dict[str, Any]:
    window = part.window
    sides = [window.row, window.col, window.height, window.width]
    return {"window": sides, **dict.fromkeys(("bbox", "bbox_crs", "aoi", "aoi_crs"))}


def _join(scene: CutScene, manifest: Manifest, run: str) -> SceneRecord:
    records = [scene.records[number] for number in range(len(scene.parts))]
    facts: dict[str, Any] = {"scene": scene.scene, "seconds": sum(record.seconds for record in records)}
    try:
        with manifest.objects.temporary_folder(run) as folder:
            places = [(record.files[0].address, part) for record, part in zip(records, scene.parts, strict=True)]
            raster = joined(places, scene.size, records[0].known, folder, scene.area)
            raster.save(folder / "joined.tif")
            files = [
                manifest.objects.move_in(file, f"{scene.name}{file.name.removeprefix('joined')}")
                for file in main_last(folder.glob("joined*"))
            ]
        assumed = tuple(dict.fromkeys(sentence for record in records for sentence in record.assumed))
        record = SceneRecord(**facts, files=tuple(reversed(files)), assumed=assumed, node=this_node())
    except MMOutError as error:
        record = SceneRecord(**facts, error=str(error))
    manifest.write(record)
    if record.error is None:
        for part in records:
            manifest.forget(part)
    return record


def cut_large_scenes(
    cluster: Cluster, job: RunSettings, rows: Sequence[tuple[str, str]], side: int
) -> dict[str, CutScene]:
    """Cut the scenes whose height or width exceeds ``side`` pixels into windows.

    Return the cut scenes by path or address.

    A scene that cannot be opened is left out. The error is reported when the model runs on it.
    """
    return cluster.call("cut scenes", _planned, job, rows, side)


def _planned(job: RunSettings, rows: Sequence[tuple[str, str]], side: int) -> dict[str, CutScene]:
    from vllm_mmout.commands.engine import binding_of

    binding = cast("Binding", binding_of(job.model, cast("Sequence[str]", job.engine)))
    scenes = [_cut(binding, job, scene, name, side) for scene, name in rows]
    return {cut.scene: cut for cut in scenes if cut is not None}


def _cut(binding: Binding, job: RunSettings, scene: str, name: str, side: int) -> CutScene | None:
    from vllm_mmout.engine.scene.cutting import cut
    from vllm_mmout.models.inputs.mapped_input import MappedInput

    if binding.inputs is None:
        return None
    params = msgspec.structs.replace(job.params)
    try:
        view = binding.inputs.open(scene, params)
        if isinstance(view, MappedInput):
            return None
        with view:
            grid = cut(binding, view.mapper, view.size, params)
            if grid is None or max(view.size) <= side:
                return None
            if "location" in getattr(view.mapper, "options", ()) and params.location is None:
                raise OptionError("--ray-split needs --location: each window would have its own")
            parts = parts_of(grid, (view.window.row, view.window.col), side)
            return CutScene(scene, name, view.size, parts, view.area) if len(parts) > 1 else None
    except InputError:
        return None
