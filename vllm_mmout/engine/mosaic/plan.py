"""`MosaicPlan`: the scenes of a mosaic, opened and checked before the model runs, and the grid of the map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.mosaic.mosaic import scene_names
from vllm_mmout.engine.mosaic.planned_maps import check_each_day, planned_maps
from vllm_mmout.engine.mosaic.scenes import MosaicScene, opened_scene
from vllm_mmout.engine.request.input_reading import check_area
from vllm_mmout.engine.request.target import Target, check_place, check_suffix, spare_the_input, target_of
from vllm_mmout.engine.scene.cutting import output_stride
from vllm_mmout.errors import InputError, MMOutError, OptionError, OutsideError, with_name
from vllm_mmout.geo import MapGrid, PlacedRaster, area_of, placed_area, window_around, window_of_box
from vllm_mmout.models.inputs.unpacking import has_numbers

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.mosaic.mosaic import Mosaic
    from vllm_mmout.engine.mosaic.planned_maps import PlannedMap
    from vllm_mmout.geo import Area, PlacedArea
    from vllm_mmout.params import OutputParams

_MOST_PIXELS = 10**11
"""Largest number of pixels of a map, or of the maps of all days together, if the caller sets no limit."""


_MAP_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("mosaic", "mosaic_grid", "path", "bbox", "bbox_crs", "aoi", "aoi_crs")),
    **dict.fromkeys(("each_day", "skip_failed", "stac_item"), False),
}
"""Values that switch off the options for the map of a mosaic, by option name. The requests for single scenes use these
values instead of the user's."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a server sets for each mosaic."""

    tiles: int | None = None
    """Largest number of tiles in a mosaic, summed over its scenes. None means no limit."""
    area: float | None = None
    """Largest area in square kilometres, of each scene and of the mosaic's map. None means no limit."""
    pixels: int | None = None
    """Largest number of pixels of the map, or of the maps of all days together. None means 10**11 pixels."""


@dataclass(frozen=True, slots=True)
class MosaicPlan:
    """Checked plan of a mosaic: its scenes in the user's order, the options of the request, and the output file."""

    binding: Binding
    params: OutputParams
    """Options of the request. ``params.mosaic`` says which scene wins where scenes overlap, such as "newest"."""
    mosaic: Mosaic
    scenes: tuple[MosaicScene, ...]
    """Scenes in the order given, except scenes that were left out."""
    scene_params: OutputParams
    """Options of the request that runs each scene. `MosaicRun.params` adds the ``path``, a temporary file."""
    target: Target | None
    """Output file or folder, or None if the request lacks a path."""
    maps: tuple[PlannedMap, ...]
    """Maps that the mosaic makes: a single one, or one for each day."""
    assumed: tuple[str, ...]
    """Sentences for the result's field ``assumed``, about scenes that were left out and about doubtful dates."""
    grid: tuple[MapGrid, bool] | None
    """Grid of the map that the user gave, and whether its size is fixed. None if the user gave no grid."""
    area: Area | None
    """Area of interest, or None. Scenes are only read around it, and map pixels outside of it are masked."""
    part: MapGrid | None
    """Part of the map's grid that the request's ``bbox`` or ``aoi`` touches. None if the request has neither.

    Scenes are only read in this part and a margin around it.
    """

    @classmethod
    def of(cls, binding: Binding, mosaic: Mosaic, params: OutputParams, limits: Limits) -> MosaicPlan:
        """Return the plan of a mosaic. Each scene is opened, checked and closed before the model runs.

        Raises:
            MMOutError: the request is refused. If a scene is the reason, the message names it.

        """
        binding.check_params(params)
        scene_params = binding.processors[binding.choice.pick(params.processor)[0]].mosaic_scene(params.of_run)
        area = None if params.aoi is None else _area_with_crs(params.aoi)
        scene_params = msgspec.structs.replace(scene_params, **_MAP_OPTIONS)
        inputs = list(mosaic.inputs)
        if mosaic.each_day:
            check_each_day(params)
        target = target_of(params, inputs)
        check_suffix(binding, params, target)
        assumed: list[str] = []
        kept = partial(_usable_scenes, assumed=assumed, skip_failed=mosaic.skip_failed)
        scenes = kept(
            (name, partial(_opened_part, binding, data, name, scene_params, params=params, area=area))
            for name, data in zip(scene_names(inputs), inputs, strict=True)
        )
        plan = cls(binding, params, mosaic, scenes, scene_params, target, (), (), mosaic.map_grid(), area, None)
        if (part := plan._requested_part()) is not None:
            margin = output_stride(binding, params)
            below = part.grown(1)
            scenes = kept((scene.name, partial(scene.with_window_below, below, margin)) for scene in scenes)
        scenes = kept(
            (scene.name, partial(scene.with_tile_count, binding, scene_params, limits.area)) for scene in scenes
        )
        maps = planned_maps(mosaic, scenes, params, target)
        plan = replace(plan, scenes=scenes, maps=maps, assumed=tuple(assumed), part=part)
        for own in plan.targets:
            spare_the_input(binding, params, own, [*inputs, *(scene.sources for scene in scenes)])
        return plan.checked(limits)

    @property
    def targets(self) -> list[Target]:
        """Output files of the maps, or the single file that stores all maps. Empty for a request without a ``path``."""
        own = [each.target for each in self.maps if each.target is not None]
        return own or ([] if self.target is None else [self.target])

    def checked(self, limits: Limits) -> MosaicPlan:
        """Check the mosaic's scales, dates, grid and limits. Return the plan, with a warning for each doubtful date.

        The warnings are added to the field ``assumed``.
        """
        self._check_scales()
        tiles = sum(scene.tiles for scene in self.scenes)
        if limits.tiles is not None and tiles > limits.tiles:
            raise InputError(
                f"the mosaic is cut into {tiles} tiles, at most {limits.tiles} are taken in one request; send fewer"
                " inputs, or a smaller bbox; a server's limit is --mmout-max-tiles"
            )
        grid, _ = self.map_of([scene.placed for scene in self.scenes])
        most = _MOST_PIXELS if limits.pixels is None else limits.pixels
        if grid.pixels * len(self.maps) > most:
            maps = "the map has" if len(self.maps) == 1 else f"the maps of {len(self.maps)} days each have"
            fewer = "" if len(self.maps) == 1 else " together; send fewer days,"
            raise InputError(
                f"{maps} {grid.size[0]} x {grid.size[1]} pixels, at most {most} are made{fewer or ';'} choose a coarser"
                " grid, or a smaller bbox; a server's limit is --mmout-max-pixels"
            )
        check_area(grid.georeference, grid.size, limits.area, "the map")
        targets: list[Target | None] = [*self.targets] or [None]
        for target in targets:
            check_place(self.binding, self.params, target, grid.georeference, tiles=True)
        return self._dated() if self.params.mosaic == "newest" or self.mosaic.each_day else self

    def _check_scales(self) -> None:
        """Raise OptionError if scenes' files state different scales, and the request does not set ``scale``."""
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
        """Return the plan with a warning for each doubtful date. Raise OptionError if the date of a scene is unknown.

        The warnings are added to the field ``assumed``. A date is doubtful if only TIFFTAG_DATETIME states it.
        """
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
        """Return the pixel grid of the map of ``rasters``, and the area of interest in pixels of that grid.

        The area is None if the request has none. ``rasters`` are the scenes or their results, in the order given.
        """
        grid = self._full_grid(rasters)
        if self.part is not None and not self._final:
            grid = grid.within(self.part)
        if self.area is None:
            return grid, None
        return grid, placed_area(self.area, grid.georeference, grid.size, "the map")

    @property
    def _final(self) -> bool:
        return self.grid is not None and self.grid[1]

    def _full_grid(self, rasters: Sequence[PlacedRaster]) -> MapGrid:
        """Return the grid that the user gave if its size is fixed, or else a grid that covers all ``rasters``."""
        grid = MapGrid.of(rasters[0]) if self.grid is None else self.grid[0]
        return grid if self._final else grid.around(rasters)

    def _requested_part(self) -> MapGrid | None:
        """Return the part of the map's grid that the request's bbox or aoi touches, or None without bbox and aoi."""
        params, area = self.params, self.area
        if area is None and params.bbox is None:
            return None
        grid = self._full_grid([scene.placed for scene in self.scenes])
        if area is not None:
            return grid.window(placed_area(area, grid.georeference, grid.size, "the map").window)
        return None if params.bbox is None else grid.part(params.bbox, params.bbox_crs)


def named(error: MMOutError, name: str) -> MMOutError:
    """Return an error whose message names the scene, or ``error`` itself if its message already does."""
    return error if name in str(error) else with_name(error, name)


def left_out(name: str, error: BaseException) -> str:
    """Return a sentence that tells users why a mosaic leaves out the scene ``name``."""
    reason = "does not touch the bbox or aoi" if isinstance(error, OutsideError) else f"failed: {error}"
    return f"{name} was left out of the mosaic, as it {reason}."


def _area_with_crs(text: str) -> Area:
    """Parse the text of an area of interest. Raise OptionError if the area states no coordinate system."""
    area = area_of(text)
    if area.crs is None:
        message = "aoi of a mosaic needs a coordinate system, as its inputs may be in several; set aoi_crs"
        raise OptionError(message, param="aoi_crs")
    return area


def _shown(scales: frozenset[tuple[float, float]]) -> str:
    return " and ".join(f"{scale:.9g} with offset {offset:.9g}" for scale, offset in sorted(scales))


def _usable_scenes(
    scenes: Iterable[tuple[str, Callable[[], MosaicScene]]], *, assumed: list[str], skip_failed: bool
) -> tuple[MosaicScene, ...]:
    """Call the functions in ``scenes``, and return the scenes that they make. Leave out scenes that cannot be used.

    Scenes outside of the bbox or aoi are always left out, and other failed scenes only if ``skip_failed`` is True. A
    sentence about each scene that is left out is added to ``assumed``.
    """
    kept = []
    for name, make in scenes:
        try:
            kept.append(make())
        except MMOutError as error:
            if not (skip_failed or isinstance(error, OutsideError)):
                told = named(error, name)
                if told is error:
                    raise
                raise told from error
            assumed.append(left_out(name, error))
    if not kept:
        raise InputError(f"no input of the mosaic is left: {' '.join(assumed)[:2000]}")
    return tuple(kept)


def _opened_part(
    binding: Binding, data: Any, name: str, scene_params: OutputParams, *, params: OutputParams, area: Area | None
) -> MosaicScene:
    """Open a scene, and limit it to the part that the request's bbox or aoi touches."""
    scene = opened_scene(binding, data, name, scene_params)
    if area is None and params.bbox is None:
        return scene
    if scene.mapper is None:
        option = "bbox" if area is None else "aoi"
        raise OptionError(f"{option} says how a raster is read, and {name} is none; leave {option} out", param=option)
    place, size = scene.whole.georeference, scene.whole.size
    if area is not None:
        return scene.with_window(window_around(area, place, size, name))
    return (
        scene
        if params.bbox is None
        else scene.with_window(window_of_box(params.bbox, params.bbox_crs, place, size, name))
    )
