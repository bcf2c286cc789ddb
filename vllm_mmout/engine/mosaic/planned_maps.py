"""Plan the maps that a mosaic makes: one map of all scenes, or one map for each day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

from vllm_mmout.engine.request.target import target_of
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import is_folder, place_of
from vllm_mmout.outputs import RasterSeries
from vllm_mmout.outputs.formats import suffix_of

if TYPE_CHECKING:
    from vllm_mmout.engine.mosaic.mosaic import Mosaic
    from vllm_mmout.engine.mosaic.scenes import MosaicScene
    from vllm_mmout.engine.request.target import Target
    from vllm_mmout.params import OutputParams

_SHOWN = 5
"""Largest number of scenes that a message names."""


@dataclass(frozen=True, slots=True)
class PlannedMap:
    """Plan of one output map of a mosaic: its scenes, its output file and its day."""

    scenes: tuple[int, ...]
    """Indices in `MosaicPlan.scenes` of the scenes that this map is made of."""
    target: Target | None
    """Output file of this map, or None if the map is not saved to a separate file."""
    day: date | None = None
    """Day on which the scenes of this map were taken, or None if the mosaic makes one map of all days."""


def planned_maps(
    mosaic: Mosaic, scenes: Sequence[MosaicScene], params: OutputParams, target: Target | None
) -> tuple[PlannedMap, ...]:
    """Return the plan of a mosaic's map. If ``each_day`` is set, return a plan for each day, the earliest first.

    Raises:
        OptionError: ``each_day`` is set, and a scene has no date, or dates of several days.

    """
    if not mosaic.each_day:
        return (PlannedMap(tuple(range(len(scenes))), target),)
    by_day: dict[date, list[int]] = {}
    for index, day in enumerate(_days(scenes)):
        by_day.setdefault(day, []).append(index)
    maps = []
    for day, indices in sorted(by_day.items()):
        own = None
        if target is not None and target.folder:
            own = target_of(params, [scenes[index].data for index in indices])
        maps.append(PlannedMap(tuple(indices), None if own is None else replace(own, stem=day.isoformat()), day))
    return tuple(maps)


def check_each_day(params: OutputParams) -> None:
    """Raise OptionError if the ``path`` of a request with ``each_day`` is neither a folder nor a Zarr store."""
    path = params.path
    if path is None or is_folder(path):
        return
    if suffix_of(place_of(path)) not in RasterSeries.formats:
        stores = " or ".join(RasterSeries.formats)
        raise OptionError(
            f"path is {path}, and each_day makes a map of each day; name a folder, with a / at its end, or a Zarr store"
            f" ({stores})",
            param="path",
        )
    if isinstance(params.output, tuple):
        raise OptionError(
            f"path is {path}, a Zarr store of maps, and the output is {', '.join(params.output)}; name a folder, with a"
            " / at its end, for a file of each",
            param="path",
        )


def _days(scenes: Sequence[MosaicScene]) -> list[date]:
    """Return the day of each scene. Raise OptionError if the day is unknown, or if a scene has several days."""
    days = [scene.days or (() if scene.written is None else (scene.written,)) for scene in scenes]
    undated = [scene.name for scene, own in zip(scenes, days, strict=True) if not own]
    if undated:
        raise OptionError(
            f"{', '.join(undated[:_SHOWN])} has no date in its metadata or name, which each_day needs; name the file"
            " with its date (2024-05-01)"
        )
    for scene, own in zip(scenes, days, strict=True):
        if len(own) > 1:
            raise OptionError(
                f"{scene.name} has dates of several days, {own[0]} to {own[-1]}, and each_day makes a map of each day;"
                " leave it out, or make a mosaic of all inputs"
            )
    return [own[0] for own in days]
