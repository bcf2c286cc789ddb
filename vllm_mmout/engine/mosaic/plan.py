"""`MosaicPlan`: the scenes of a mosaic, opened and checked before the model runs, and the grid of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.mosaic.mosaic import label
from vllm_mmout.engine.request.input_reading import check_area, media_of
from vllm_mmout.engine.request.target import Target, check_place, check_suffix, spare_the_input, target_of
from vllm_mmout.engine.scene.cutting import cut
from vllm_mmout.errors import InputError, MMOutError, OptionError, OutsideError, with_name
from vllm_mmout.geo import (
    MapGrid,
    PlacedRaster,
    area_of,
    date_of_file_item,
    date_of_items,
    date_of_name,
    extent_of,
    placed_area,
)
from vllm_mmout.models.inputs.catalogued import with_catalogued
from vllm_mmout.models.inputs.input_forms import as_folder, is_open_file, parts_of
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.unpacking import has_numbers

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.mosaic.mosaic import Mosaic
    from vllm_mmout.geo import Area, PlacedArea
    from vllm_mmout.models.inputs.raster_view import RasterView
    from vllm_mmout.params import OutputParams

_MOST_PIXELS = 10**11
"""Largest number of pixels of a map, if the caller sets no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a mosaic that a server sets. None means no limit."""

    tiles: int | None = None
    """Largest number of tiles of all scenes together."""
    area: float | None = None
    """Largest area of a scene, and of the map, in square kilometres."""
    pixels: int | None = None
    """Largest number of pixels of the map."""


@dataclass(frozen=True, slots=True)
class MosaicScene:
    """A scene of a mosaic, whose header was read."""

    name: str
    """Name for messages."""
    data: Any
    """The input as the user gave it."""
    placed: PlacedRaster
    """Place of the part of the scene that is used."""
    day: date | None
    """Day on which the scene was taken, or None if it is not stated."""
    written: date | None
    """Day in TIFFTAG_DATETIME, which may be the day when the file was written."""
    tiles: int
    """Number of tiles that the scene is cut into, 1 if it fits one forward."""
    scales: frozenset[tuple[float, float]] = frozenset()
    """Pairs of scale and offset that the files state and the model's input leaves out."""

    @property
    def newest(self) -> date:
        """The day of the scene, else that in TIFFTAG_DATETIME, else the earliest possible day."""
        return self.day or self.written or date.min


@dataclass(frozen=True, slots=True)
class MosaicPlan:
    """The scenes of a mosaic in the order given, the params of the request, and where the result goes."""

    binding: Binding
    params: OutputParams
    """Params of the request, whose ``mosaic`` is the order."""
    mosaic: Mosaic
    scenes: tuple[MosaicScene, ...]
    """Scenes in the order given, except scenes that were left out."""
    scene_params: OutputParams
    """Params of each scene, without a path."""
    target: Target | None
    assumed: tuple[str, ...]
    """Sentences about scenes that were left out, and about dates."""
    grid: tuple[MapGrid, bool] | None
    """Grid that the user gave, and whether its size is final, or None."""
    area: Area | None
    """Area of interest. Scenes are read in the box around it, and the map is masked to it."""

    @classmethod
    def of(cls, binding: Binding, mosaic: Mosaic, params: OutputParams, limits: Limits) -> MosaicPlan:
        """Open each scene, check all that can be checked before the model runs, and close the scenes.

        Raises:
            MMOutError: the request is refused. If a scene is the reason, the message names it.

        """
        binding.check_params(params)
        scene_params = binding.processors[binding.choice.pick(params.processor)[0]].mosaic_scene(params.of_run)
        area = None if params.aoi is None else _area(params.aoi)
        box: dict[str, Any] = (
            {} if area is None else {"bbox": extent_of(area), "bbox_crs": area.crs, "aoi": None, "aoi_crs": None}
        )
        scene_params = msgspec.structs.replace(scene_params, mosaic=None, path=None, stac_item=False, **box)
        inputs = list(mosaic.inputs)
        target = target_of(params, inputs)
        spare_the_input(binding, params, target, inputs)
        check_suffix(binding, params, target)
        scenes: list[MosaicScene] = []
        assumed: list[str] = []
        for number, data in enumerate(mosaic.inputs, start=1):
            name = label(data, number)
            try:
                scenes.append(_scene(binding, data, name, scene_params, limits))
            except MMOutError as error:
                if not (mosaic.skip_failed or isinstance(error, OutsideError)):
                    told = named(error, name)
                    if told is error:
                        raise
                    raise told from error
                assumed.append(left_out(name, error))
        if not scenes:
            raise InputError(f"no input of the mosaic is left: {' '.join(assumed)[:2000]}")
        grid = mosaic.map_grid()
        plan = cls(binding, params, mosaic, tuple(scenes), scene_params, target, tuple(assumed), grid, area)
        return plan.checked(limits)

    def checked(self, limits: Limits) -> MosaicPlan:
        """Check the dates, the grid and the limits; return the plan with a note if dates are doubtful."""
        self._check_scales()
        tiles = sum(scene.tiles for scene in self.scenes)
        if limits.tiles is not None and tiles > limits.tiles:
            raise InputError(
                f"the mosaic is cut into {tiles} tiles, at most {limits.tiles} are taken in one request; send fewer"
                " inputs, or a smaller bbox; a server's limit is --mmout-max-tiles"
            )
        grid, _ = self.map_of([scene.placed for scene in self.scenes])
        most = _MOST_PIXELS if limits.pixels is None else limits.pixels
        if grid.pixels > most:
            raise InputError(
                f"the map has {grid.size[0]} x {grid.size[1]} pixels, at most {most} are made; choose a coarser grid,"
                " or a smaller bbox; a server's limit is --mmout-max-pixels"
            )
        check_area(grid.georeference, grid.size, limits.area, "the map")
        check_place(self.binding, self.params, self.target, grid.georeference, tiles=True)
        return self if self.params.mosaic != "newest" else self._dated()

    def _check_scales(self) -> None:
        """Raise OptionError if scenes store values by different scales, and the request does not mention them."""
        if self.params.scale is not None or has_numbers(self.params):
            return
        scaled = [scene for scene in self.scenes if scene.scales]
        for scene in scaled[1:]:
            if scene.scales != scaled[0].scales:
                stated = [f"{each.name} {_shown(each.scales)}" for each in (scaled[0], scene)]
                raise OptionError(
                    f"inputs of the mosaic state different scales: {', and '.join(stated)}. The model would get the"
                    ' numbers as stored; choose scale="file" for values, or scale="stored" to confirm',
                    param="scale",
                )

    def _dated(self) -> MosaicPlan:
        """Return the plan with each scene's day. Raise OptionError if the day of a scene is unknown."""
        undated = [scene.name for scene in self.scenes if (scene.day or scene.written) is None]
        if undated:
            raise OptionError(
                f'{", ".join(undated[:5])} has no date in its metadata or name, which mosaic="newest" needs; name the'
                ' file with its date (2024-05-01), or choose mosaic="first"',
                param="mosaic",
            )
        doubtful = tuple(
            f"{scene.name} was dated {scene.written} by TIFFTAG_DATETIME, which may be when the file was written; name"
            " the file with its date for another."
            for scene in self.scenes
            if scene.day is None
        )
        return replace(self, assumed=self.assumed + doubtful)

    def map_of(self, rasters: Sequence[PlacedRaster]) -> tuple[MapGrid, PlacedArea | None]:
        """Return the grid of the map, and the area of interest on its pixels or None.

        ``rasters`` are the scenes or their results, in the order given.
        """
        final = self.grid is not None and self.grid[1]
        grid = MapGrid.of(rasters[0]) if self.grid is None else self.grid[0]
        if not final:
            grid = grid.around(rasters)
            if self.params.bbox is not None:
                grid = grid.part(self.params.bbox, self.params.bbox_crs)
        if self.area is None:
            return grid, None
        placed = placed_area(self.area, grid.georeference, grid.size, "the map")
        if final:
            return grid, placed
        return grid.window(placed.window), placed.within(placed.window)


def named(error: MMOutError, name: str) -> MMOutError:
    """Return an error that names its scene, if it does not yet."""
    return error if name in str(error) else with_name(error, name)


def left_out(name: str, error: BaseException) -> str:
    """Return the sentence about a scene that a mosaic leaves out."""
    reason = "does not touch the bbox or aoi" if isinstance(error, OutsideError) else f"failed: {error}"
    return f"{name} was left out of the mosaic, as it {reason}."


def _area(text: str) -> Area:
    """Return the area of interest. Raise OptionError if it is in the coordinate system of the input."""
    area = area_of(text)
    if area.crs is None:
        message = "aoi of a mosaic needs a coordinate system, as its inputs may be in several; set aoi_crs"
        raise OptionError(message, param="aoi_crs")
    return area


def _scene(binding: Binding, data: Any, name: str, params: OutputParams, limits: Limits) -> MosaicScene:
    """Open a scene, return what its header says, and close it. File objects are left at their position."""
    inputs = binding.inputs
    if inputs is None:
        raise OptionError(
            f"{binding.model} has no input mapper, and a mosaic needs one; leave mosaic out", param="mosaic"
        )
    media = media_of(data, several=inputs.rasters is not None, fields=inputs.fields)
    media = media if inputs.rasters is None else with_catalogued(media)
    with _positions_kept(media):
        opened = inputs.open(media, params)
        if isinstance(opened, MappedInput):
            source = opened.source
            placed = PlacedRaster(name, source.georeference, source.size or (0, 0))
            day = date_of_items(source.metadata) or date_of_name(name)
            return MosaicScene(name, data, placed, day, date_of_file_item(source.metadata), 1)
        with closing(opened) as view:
            check_area(view.georeference, view.size, limits.area)
            placed = PlacedRaster(name, view.georeference, view.size)
            grid = cut(binding, view, params)
            tiles = 1 if grid is None else len(grid)
            return MosaicScene(name, data, placed, *_days(media, view), tiles, _scales(view))


def _days(data: Any, view: RasterView) -> tuple[date | None, date | None]:
    """Return the newest day of the files of a scene, and the newest day in their TIFFTAG_DATETIME."""
    files = view.raster.members_of(view.bands)
    days = [date_of_items(file.metadata) or date_of_name(PurePath(file.name).name) for file in files]
    folder = as_folder(data)
    known = [day for day in days if day is not None]
    if not known and folder is not None and (of_folder := date_of_name(folder.resolve().name)) is not None:
        known = [of_folder]
    written = [day for file in files if (day := date_of_file_item(file.metadata)) is not None]
    return max(known, default=None), max(written, default=None)


def _scales(view: RasterView) -> frozenset[tuple[float, float]]:
    """Return each pair of scale and offset that files of a scene state for the numbers that the model gets."""
    files = view.raster.members_of(view.bands)
    packings = [packing for file in files for packing in file.packing if packing.told and not packing.applied]
    # The shift is added to the numbers: the rest of the offset is that of the sum.
    return frozenset((packing.scale, round(packing.offset - packing.shift * packing.scale, 9)) for packing in packings)


def _shown(scales: frozenset[tuple[float, float]]) -> str:
    return " and ".join(f"{scale:.9g} with offset {offset:.9g}" for scale, offset in sorted(scales))


@contextmanager
def _positions_kept(data: Any) -> Iterator[None]:
    """Restore the position of each file object in an input at the end, since each scene is opened twice."""
    files = list(_files_in(data))
    for file in files:
        if not (hasattr(file, "seekable") and file.seekable()):
            raise InputError("a mosaic opens each input twice, and this file object cannot seek; give its path")
    positions = [file.tell() for file in files]
    try:
        yield
    finally:
        for file, position in zip(files, positions, strict=True):
            file.seek(position)


def _files_in(data: Any) -> Iterator[Any]:
    if is_open_file(data):
        yield data
    for part in parts_of(data):
        yield from _files_in(part)
