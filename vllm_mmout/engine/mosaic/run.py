"""`MosaicRun`, which collects the results of a mosaic's scenes as they arrive, and joins them into maps."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.mosaic.joining import Joining, SceneResult
from vllm_mmout.engine.mosaic.plan import left_out, named
from vllm_mmout.engine.request.results import asked_results
from vllm_mmout.engine.request.target import finishing
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.errors import AbortedError, DecodeError, MMOutError, SaveError
from vllm_mmout.geo import DATES, DESCRIBED_BY
from vllm_mmout.outputs import RasterOutput, RasterSeries
from vllm_mmout.outputs.base import ASSUMED, Source
from vllm_mmout.outputs.input_picture import InputPicture
from vllm_mmout.outputs.placed_pictures import PlacedPicture, pictures_on_grid
from vllm_mmout.outputs.stored import StoredRaster

if TYPE_CHECKING:
    from vllm_mmout.engine.mosaic.plan import MosaicPlan
    from vllm_mmout.engine.mosaic.planned_maps import PlannedMap
    from vllm_mmout.geo import MapGrid, PlacedArea
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor

INPUTS, ORDER = "MMOUT_INPUTS", "MMOUT_MOSAIC"
"""Keys in the metadata of a map. ``INPUTS`` lists the names of its inputs, one per line. ``ORDER`` tells which input is
used where several overlap."""

_MOST_NAMES = 10
"""Largest number of scene names that a message about several scenes lists. Further scenes are only counted."""


class MosaicRun:
    """Results of a mosaic's scenes, stored in a temporary folder that `close` removes, and the map made of them.

    Args:
        plan: the checked plan.
        folder: folder for temporary files and the result, if the plan's target has none. None for the system's
            temporary folder.

    """

    def __init__(self, plan: MosaicPlan, folder: Path | None = None) -> None:
        self.plan = plan
        here = None if plan.target is None else plan.target.folder_here
        self.folder = here or folder
        """Folder for temporary files of the mosaic, or None for the system's temporary folder."""
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix=".mmout-mosaic.", dir=self.folder)
        except OSError as error:
            raise SaveError(
                f"cannot write to {self.folder}: {error.strerror or error}; choose another folder"
            ) from error
        self._results: dict[int, SceneResult] = {}
        self._assumed: dict[int, tuple[str, ...]] = {}
        self._aborted = False

    def params(self, index: int) -> OutputParams:
        """Return the options for running scene ``index``. Their ``path`` is a file in the temporary folder."""
        return msgspec.structs.replace(
            self.plan.scenes[index].params(self.plan.scene_params), path=str(self._path(index))
        )

    def _path(self, index: int) -> Path:
        return Path(self._temporary.name) / f"{index:04d}.tif"

    def take(self, index: int, result: MultimodalRequestOutput) -> None:
        """Store the result of scene ``index``. If the scene failed, leave it out or raise, as the mosaic's options say.

        Raises:
            MMOutError: the scene failed. The message names it.

        """
        name = self.plan.scenes[index].name
        if result.error is not None:
            self.failed(index, result.error)
            return
        output = result.outputs
        if not isinstance(output, RasterOutput):
            raise DecodeError(f"{name}: a mosaic joins rasters, and the result is a {type(output).__name__}")
        picture = output.input_picture
        if not isinstance(output, StoredRaster):
            output = StoredRaster(self._path(index), **output.described)
        scene = self._results[index] = SceneResult(name, output, self._path(index), picture)
        empty = (f"{name} adds nothing to the mosaic, as no pixel that was used has data.",) if scene.is_empty() else ()
        self._assumed[index] = (*result.assumed, *empty)

    def failed(self, index: int, error: BaseException) -> None:
        """Leave the failed scene ``index`` out of the mosaic if ``skip_failed`` is set. Otherwise raise the error.

        An AbortedError, and any error that is not an MMOutError, is always raised. The message of a raised MMOutError
        names the scene.
        """
        name = self.plan.scenes[index].name
        if not self.plan.mosaic.skip_failed or not isinstance(error, MMOutError) or isinstance(error, AbortedError):
            raise named(error, name) if isinstance(error, MMOutError) else error
        self._assumed[index] = (left_out(name, error),)

    def abort(self) -> None:
        """Make a running or later call of `result` raise an AbortedError. May be called from any thread."""
        self._aborted = True

    def result(self, request_id: str) -> MultimodalRequestOutput:
        """Join the results of the scenes into a map, or one map per day, and return the mosaic's result.

        The maps are saved if the request has a path. The call blocks.

        Raises:
            MMOutError: all scenes failed, the results differ in their classes or bands, or the map cannot be written.

        """
        plan = self.plan
        assumed = tuple(dict.fromkeys([*plan.assumed, *self._assumed_of(sorted(self._assumed))]))
        if not self._results:
            raise DecodeError(f"every input of the mosaic failed: {' '.join(assumed)[:2000]}")
        grid, area = plan.map_of([result.placed for _, result in sorted(self._results.items())])
        if area is not None:
            assumed = tuple(dict.fromkeys([*assumed, *area.assumed]))
        made = [each for each in plan.maps if not self._results.keys().isdisjoint(each.scenes)]
        joined: list[StoredRaster] = []
        try:
            joined.extend(self._joined(each, grid, area) for each in made)  # keeps those made before an error
            outputs = [self._finished(*pair, grid, area) for pair in zip(made, joined, strict=True)]
            output = self._of_days(made, outputs) if plan.mosaic.each_day else outputs[0]
        except BaseException:
            for raster in joined:
                raster.close()
            raise
        tiles = sum(scene.tiles for scene in plan.scenes)
        return MultimodalRequestOutput(
            request_id, output, [], 0, finished=True, progress=Progress(tiles, tiles), assumed=assumed
        )

    def _joined(self, planned: PlannedMap, grid: MapGrid, area: PlacedArea | None) -> StoredRaster:
        """Join the results of the scenes of a map."""
        processor, params = self._processor, self.plan.params
        indices = self._succeeded(planned)
        joining = Joining(
            self._by_precedence(indices),
            grid,
            confident=params.mosaic == "confident",
            finish=processor.mosaic_pixels(params.of_run),
            resampling=params.resampling,
            area=area,
            check_aborted=self._check_aborted,
        )
        return joining.raster(self.folder, self._metadata(indices, self._assumed_in(planned, area)))

    def _succeeded(self, planned: PlannedMap) -> list[int]:
        """Return the indices of those scenes of a map that have succeeded."""
        return [index for index in planned.scenes if index in self._results]

    def _finished(self, planned: PlannedMap, raster: StoredRaster, grid: MapGrid, area: PlacedArea | None) -> Any:
        """Build the requested outputs from ``raster``, a joined map. Save them if ``planned`` names an output file."""
        plan, size = self.plan, (raster.height, raster.width)
        output = self._processor.mosaic_output(raster, plan.params.of_run, area)
        assumed = self._assumed_in(planned, area)
        picture = _picture(self._by_precedence(self._succeeded(planned)), grid)
        place = Source(size=size, georeference=raster.georeference, assumed=assumed, area=area, input_picture=picture)
        kinds = asked_results(plan.binding, plan.params) if isinstance(plan.params.output, tuple) else ()
        return finishing(None, planned.target, kinds=kinds, placed_on=place)(place.lay(output), None)

    def _of_days(self, made: Sequence[PlannedMap], outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of the daily maps by date. If the request's path is a Zarr store, save all maps in it."""
        by_day = {str(each.day): output for each, output in zip(made, outputs, strict=True)}
        target = self.plan.target
        if target is not None and not target.folder:
            path = str(RasterSeries(by_day).save(target.path))
            for output in outputs:
                output.path = path
        return by_day

    @property
    def _processor(self) -> OutputProcessor:
        return self.plan.binding.processors[self.plan.binding.choice.pick(self.plan.params.processor)[0]]

    def _assumed_in(self, planned: PlannedMap, area: PlacedArea | None) -> tuple[str, ...]:
        """Return the sentences about all assumptions that were made for a map.

        The assumptions concern the whole mosaic, the scenes of the map, and the area of interest.
        """
        own = self._assumed_of([index for index in planned.scenes if index in self._assumed])
        return tuple(dict.fromkeys([*self.plan.assumed, *own, *(() if area is None else area.assumed)]))

    def _assumed_of(self, indices: Sequence[int]) -> list[str]:
        """Return the sentences about assumptions that were made for the scenes ``indices``, without repetition."""
        return _merged([(self.plan.scenes[index].name, self._assumed[index]) for index in indices])

    def _check_aborted(self) -> None:
        if self._aborted:
            raise AbortedError("the request was aborted before its result was delivered")

    def _by_precedence(self, indices: list[int]) -> list[SceneResult]:
        """Return the results of the scenes ``indices``, in their order of precedence where scenes overlap."""
        if self.plan.params.mosaic == "newest":
            days = {index: self.plan.scenes[index].sorting_date for index in indices}
            indices = sorted(indices, key=days.__getitem__, reverse=True)
        elif self.plan.params.mosaic == "clear":
            shares = {index: self._results[index].nodata_share() for index in indices}
            indices = sorted(indices, key=shares.__getitem__)
        return [self._results[index] for index in indices]

    def _metadata(self, indices: Sequence[int], assumed: tuple[str, ...]) -> dict[str, str]:
        """Return the map's metadata: items that are equal in all scenes, and lists of the scenes' names and dates."""
        each = [self._results[index].raster.metadata or {} for index in indices]
        shared = {key: text for key, text in each[0].items() if all(other.get(key) == text for other in each[1:])}
        shared.pop(ASSUMED, None)
        names = [self._results[index].name for index in indices]
        dates = [
            metadata.get(DATES) or _day_in_utc(self.plan.scenes[index].day)
            for index, metadata in zip(indices, each, strict=True)
        ]
        lists: dict[str, Sequence[str]] = {
            INPUTS: names,
            DESCRIBED_BY: [metadata.get(DESCRIBED_BY, "") for metadata in each],
            DATES: dates if all(dates) else [],
            ASSUMED: assumed,
        }
        lines = {key: "\n".join(dict.fromkeys(filter(None, texts))) for key, texts in lists.items()}
        own = {ORDER: str(self.plan.params.mosaic), **{key: text for key, text in lines.items() if text}}
        return {**dict(sorted(shared.items())), **own}

    def close(self) -> None:
        """Remove the temporary folder with the results of the scenes. May be called repeatedly."""
        self._temporary.cleanup()


def _picture(results: Sequence[SceneResult], grid: MapGrid) -> InputPicture | None:
    """Return a function that draws the scenes of a map as one picture. Return None if no scene can be read again.

    The function reads the scenes again. ``results`` are in order of precedence.
    """
    pictures = [PlacedPicture(result.picture, result.placed) for result in results if result.picture is not None]
    return InputPicture(partial(pictures_on_grid, pictures, grid)) if pictures else None


def _day_in_utc(day: date | None) -> str:
    """Return two lines of text: the first and the last second of a day in UTC. Return "" if ``day`` is None."""
    return "" if day is None else f"{day}T00:00:00Z\n{day}T23:59:59Z"


def _merged(assumed: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the sentences of all scenes. Sentences that differ only in the scene's name become one sentence.

    ``assumed`` holds pairs of a scene's name and its sentences.
    """
    alike: dict[str, dict[str, str]] = {}
    for name, sentences in assumed:
        for sentence in sentences:
            alike.setdefault(sentence.replace(name, ""), {})[name] = sentence
    merged = []
    for key, by_name in alike.items():
        (_, sentence), *others = by_name.items()
        names = [name for name, _ in others] if key != sentence else []
        more = f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
        also = f" The same holds for {', '.join(names[:_MOST_NAMES])}{more}." if names else ""
        merged.append(f"{sentence}{also}")
    return merged
