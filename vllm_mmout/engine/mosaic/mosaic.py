"""`Mosaic`, an input of several scenes whose results become one map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, MapGrid, PlacedRaster, open_raster, printable_name, proj_crs, without_secrets
from vllm_mmout.models.inputs.catalogued import catalogued
from vllm_mmout.models.inputs.input_forms import parts_of
from vllm_mmout.params import PIXEL_SIZES, OutputParams

Order: TypeAlias = Literal["newest", "first", "clear", "confident"]
"""Rule that chooses among overlapping results of a mosaic, see ``OutputParams.mosaic``."""
MOST = 1000
"""Largest number of scenes of a mosaic."""
FILES_AT_ONCE = 48
"""Largest number of files that an ``AsyncLLM`` opens at the same time for the scenes of a mosaic. A scene that has more
files runs alone."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadInput:
    """Input of a mosaic that could not be opened. The mosaic fails with ``error``, or leaves the input out."""

    name: str
    """Name for messages."""
    error: InputError


@dataclass(frozen=True, slots=True, eq=False)
class Mosaic:
    """Several scenes whose results are joined to one map.

    Args:
        inputs: the scenes. Each is an input of its own: a path, a mapping of band names to files, a list of dates.
        order: which result is used where several overlap: "newest", "first", "clear" or "confident". By default the
            ``mosaic`` of the request's params, or else "newest". See `OutputParams`.
        grid: grid of the map: a raster file whose grid it takes; (crs, size of a pixel), such as ("EPSG:3035", 10); or
            (`Georeference`, (height, width)). By default the grid of the first scene, extended to cover all scenes.
        skip_failed: whether to leave out scenes that fail. The result's ``assumed`` names them. By default the request
            fails.
        each_day: whether to make a map of each day (UTC) of the inputs, all on one grid, instead of one map. The
            result's ``outputs`` are a dict of them by date, such as "2024-06-01". A ``path`` must be a folder, for
            files named by their dates, or a Zarr store (``.zarr``, ``.zarr.zip``), which has a time axis then.

    Raises:
        InputError: there are no inputs, or more than 1000.
        OptionError: the order or the grid is malformed.

    """

    inputs: Sequence[Any]
    order: Order | None = None
    grid: Any = None
    skip_failed: bool = False
    each_day: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str | bytes | Mapping) or not isinstance(self.inputs, Sequence):
            raise InputError(f"a mosaic takes a list of inputs, got {type(self.inputs).__name__}; write Mosaic([...])")
        if not 1 <= len(self.inputs) <= MOST:
            raise InputError(f"a mosaic takes 1 to {MOST} inputs, got {len(self.inputs)}; make several maps of them")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if self.order is not None:
            OutputParams(mosaic=self.order)

    def map_grid(self) -> tuple[MapGrid, bool] | None:
        """Return the grid that the user gave for the map, and whether its size is fixed. Without a grid, return None.

        If the grid is a file, the file's header is read.

        Raises:
            OptionError: the grid is malformed, or its file has no usable grid.
        """
        try:
            return self._map_grid()
        except (InputError, TypeError, ValueError) as error:
            raise OptionError(f"grid of the mosaic: {error}", param="mosaic_grid") from error

    def _map_grid(self) -> tuple[MapGrid, bool] | None:
        grid = self.grid
        if grid is None:
            return None
        if isinstance(grid, str | PurePath):
            with open_raster(str(grid)) as raster:
                return MapGrid.of(PlacedRaster(PurePath(raster.name).name, raster.georeference, raster.size)), True
        first, second = grid
        if isinstance(first, Georeference):
            height, width = second
            if min(height, width) < 1:
                raise ValueError(f"the size must be (height, width) of 1 or more, got {second}")
            return MapGrid.of(PlacedRaster("the grid", first, (int(height), int(width)))), True
        resolution = float(second)
        least, most = PIXEL_SIZES
        if not least <= resolution <= most:
            raise ValueError(f"the size of a pixel must be {least} to {most}, got {second}")
        system = proj_crs(str(first))
        if not (system.is_projected or system.is_geographic):
            raise ValueError(f"{str(first)[:60]} is neither a projected nor a geographic system")
        return MapGrid.of_system(str(first), resolution), False


def as_mosaic(data: Any, params: OutputParams) -> tuple[Mosaic, OutputParams] | None:
    """Return the requested `Mosaic` and its params. Return None if the request does not ask for a mosaic.

    A request asks for a mosaic by a `Mosaic` as ``data``, or by ``params.mosaic`` and a list of inputs. The returned
    `Mosaic` has the grid, ``each_day`` and ``skip_failed`` of the params, and the returned params have the order of the
    `Mosaic`.
    """
    if not isinstance(data, Mosaic):
        if params.mosaic is None:
            return None
        if not isinstance(data, list | tuple):
            raise OptionError(
                f"mosaic={params.mosaic!r} is for a list of inputs, got one input ({type(data).__name__}); give"
                " Mosaic([...])",
                param="mosaic",
            )
        data = Mosaic(data)
    orders = {data.order, params.mosaic} - {None}
    if len(orders) > 1:
        raise OptionError(
            f"the order is {data.order!r} in the Mosaic and {params.mosaic!r} in the params; give one", param="mosaic"
        )
    if params.mosaic_grid is not None:
        if data.grid is not None:
            raise OptionError(
                f"the grid of the map is set in the Mosaic and as {params.mosaic_grid} in the params; give one",
                param="mosaic_grid",
            )
        data = replace(data, grid=params.mosaic_grid)
    data = replace(data, skip_failed=data.skip_failed or params.skip_failed, each_day=data.each_day or params.each_day)
    return data, msgspec.structs.replace(params, mosaic=next(iter(orders), "newest"))


def scene_names(inputs: Sequence[Any]) -> list[str]:
    """Return a name for each scene, for messages. Equal names get the number of the input, counted from 1."""
    names = [scene_name(data, number) for number, data in enumerate(inputs, start=1)]
    counts = Counter(names)
    return [f"{name} (input {number})" if counts[name] > 1 else name for number, name in enumerate(names, start=1)]


def scene_name(data: Any, number: int) -> str:
    """Return a scene's name for messages: the name of its catalogue record or first file, or "input ``number``"."""
    if isinstance(data, str | PurePath):
        return PurePath(without_secrets(str(data))).name or f"input {number}"
    name = getattr(data, "name", None)
    if isinstance(name, str):
        return printable_name(PurePath(name).name) or f"input {number}"
    try:
        record = catalogued(data)
    except InputError:  # raised again when the input is read
        record = None
    if record is not None:
        return printable_name(record.name)
    parts = parts_of(data)
    if not parts:
        return f"input {number}"
    more = f" and {len(parts) - 1} more" * (len(parts) > 1)
    return f"{scene_name(parts[0], number)}{more}"
