"""Define `MosaicScene`, which describes a scene of a mosaic: the properties in its header, and the part to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.mosaic.mosaic import UnreadInput
from vllm_mmout.engine.request.input_reading import check_area, media_of
from vllm_mmout.engine.scene.cutting import cut
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import (
    DATES,
    PlacedRaster,
    Window,
    date_of_file_item,
    date_of_items,
    date_of_name,
    days_of_times,
    window_of_box,
)
from vllm_mmout.models.inputs.catalogued import with_catalogued
from vllm_mmout.models.inputs.input_forms import as_folder, is_open_file, parts_of
from vllm_mmout.models.inputs.mapped_input import MappedInput

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.geo import MapGrid
    from vllm_mmout.models.inputs.raster_view import PlanesMapper, RasterView
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class MosaicScene:
    """Scene of a mosaic, with the properties that its header states."""

    name: str
    """Name for messages."""
    data: Any
    """The input as the user gave it."""
    sources: Any
    """The user's input. Each catalogue record in it, such as a STAC item, is replaced by the files that the record
    describes."""
    whole: PlacedRaster
    """Georeference and size of the whole scene."""
    day: date | None
    """Day on which the scene was taken, or None if it is not stated."""
    days: tuple[date, ...]
    """Sorted acquisition days that the scene's files or its catalogue state.

    A time with a time zone counts as its day in UTC.
    """
    written: date | None
    """Day in TIFFTAG_DATETIME, which may be the day when the file was written."""
    scales: frozenset[tuple[float, float]]
    """Distinct pairs (scale, offset) that the scene's files state, but that reading does not apply to the pixels."""
    mapper: PlanesMapper | None
    """Mapper that reads the scene, or None if the scene is tensors, which cannot be read in parts."""
    window: Window | None = None
    """Part of the scene that is read, or None to read the whole scene."""
    files: int = 1
    """Number of files that are open while the scene is read."""
    tiles: int = 1
    """Number of tiles that the scene's ``window`` is cut into, or 1 if the window fits one forward pass."""

    @property
    def sorting_date(self) -> date:
        """Date for sorting scenes: ``day``, or else ``written``, or else the earliest possible date."""
        return self.day or self.written or date.min

    @property
    def placed(self) -> PlacedRaster:
        """Georeference and size of the part of the scene that is read."""
        if self.window is None:
            return self.whole
        row, col, height, width = self.window
        return PlacedRaster(self.name, self.whole.place.shifted(row, col), (height, width))

    def params(self, params: OutputParams) -> OutputParams:
        """Return ``params`` with this scene's ``window``, or unchanged if the whole scene is read."""
        return params if self.window is None else msgspec.structs.replace(params, window=self.window)

    def with_window(self, window: Window) -> MosaicScene:
        """Return a copy of the scene whose pixels are read only in ``window``."""
        return replace(self, window=window)

    def with_window_below(self, grid: MapGrid, margin: int) -> MosaicScene:
        """Return a copy of the scene whose ``window`` covers a map's ``grid``, plus ``margin`` pixels on each side.

        Raises OutsideError if the grid lies outside the scene.
        """
        whole, size = self.whole, self.whole.size
        window = window_of_box(grid.extent, grid.georeference.crs, whole.georeference, size, self.name)
        return self.with_window(window.grown(margin, size).in_multiples(self._multiple, size))

    @property
    def _multiple(self) -> int:
        return 1 if self.mapper is None else self.mapper.multiple_of

    def with_tile_count(self, binding: Binding, params: OutputParams, most_area: float | None) -> MosaicScene:
        """Return a copy of this scene with ``tiles`` set to the number of tiles that its ``window`` is cut into.

        Args:
            binding: output processors of the engine.
            params: params of the scenes.
            most_area: largest area that is read, in square kilometres, or None for no limit.

        Raises:
            MMOutError: the part is too large, or cannot be cut into tiles.
        """
        if self.mapper is None:
            return self
        placed = self.placed
        check_area(placed.georeference, placed.size, most_area)
        grid = cut(binding, self.mapper, placed.size, params)
        return replace(self, tiles=1 if grid is None else len(grid))


def opened_scene(binding: Binding, data: Any, name: str, params: OutputParams) -> MosaicScene:
    """Open a scene, read its header, and close it. If ``data`` has file objects, their position is restored."""
    if isinstance(data, UnreadInput):
        raise data.error
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
            written = date_of_file_item(source.metadata)
            return MosaicScene(name, data, media, placed, day, (day,) if day else (), written, frozenset(), None)
        with closing(opened) as view:
            placed = PlacedRaster(name, view.georeference, view.size)
            files = len({id(file) for file in view.raster.members_of(view.bands)})
            facts = (*_days(media, view), _scales(view), view.mapper)
            return MosaicScene(name, data, media, placed, *facts, files=files)


def _days(data: Any, view: RasterView) -> tuple[date | None, tuple[date, ...], date | None]:
    """Return a scene's newest acquisition day, all its acquisition days, and the newest day in TIFFTAG_DATETIME."""
    files = view.raster.members_of(view.bands)
    of_files = [date_of_items(file.metadata) or date_of_name(PurePath(file.name).name) for file in files]
    folder = as_folder(data)
    known = [day for day in of_files if day is not None]
    if not known and folder is not None and (of_folder := date_of_name(folder.resolve().name)) is not None:
        known = [of_folder]
    written = [day for file in files if (day := date_of_file_item(file.metadata)) is not None]
    stated = [day for file in files for day in days_of_times(file.metadata.get(DATES, ""))]
    days = stated or known
    return max(days, default=None), tuple(sorted({*days})), max(written, default=None)


def _scales(view: RasterView) -> frozenset[tuple[float, float]]:
    """Return the pairs (scale, offset) that a scene's files state but the reader does not apply to the pixels."""
    files = view.raster.members_of(view.bands)
    packings = [packing for file in files for packing in file.packing if packing.told and not packing.applied]
    # The shift is added to the numbers: the rest of the offset is that of the sum.
    return frozenset((packing.scale, round(packing.offset - packing.shift * packing.scale, 9)) for packing in packings)


@contextmanager
def _positions_kept(data: Any) -> Iterator[None]:
    """Restore the read position of each file object in an input when the ``with`` block ends.

    A mosaic opens each input twice, and must read it from the same position again. Raise InputError if a file object
    cannot seek.
    """
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
