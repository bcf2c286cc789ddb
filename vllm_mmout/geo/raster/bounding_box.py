"""Convert bounding boxes in coordinates to pixel windows of a raster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from rasterio._err import CPLE_BaseError, CPLE_NotSupportedError
from rasterio.warp import transform

from vllm_mmout.errors import InputError, OptionError, OutsideError
from vllm_mmout.geo.raster.crs.syntax import shown
from vllm_mmout.geo.raster.crs.text import rasterio_crs
from vllm_mmout.geo.raster.pixel_grid import TURN, Box, BoxSystem, PixelGrid, text
from vllm_mmout.geo.raster.raster import Window

if TYPE_CHECKING:
    from rasterio.crs import CRS

    from vllm_mmout.geo.raster.georeference import Georeference

Option: TypeAlias = Literal["bbox", "aoi"]
"""Name of a request option that selects a part of a raster by coordinates, for use in error messages."""
_NOUNS: Mapping[Option, str] = {"bbox": "a bbox", "aoi": "an aoi"}
_CRS_OPTIONS: Mapping[Option, tuple[str, str]] = {
    "bbox": ("bbox_crs", "leave bbox_crs out, for a bbox in its own coordinates"),
    "aoi": ("aoi_crs", "give an aoi in its own coordinates, as a shapely geometry without aoi_crs"),
}
"""Options for coordinate systems: "bbox" or "aoi" -> (name, advice). The name is "bbox_crs" or "aoi_crs". Error
messages about the coordinate system contain the advice."""


def window_of_box(
    box: Box, box_crs: str | None, georeference: Georeference | None, size: tuple[int, int], name: str
) -> Window:
    """Return the window around the pixels that a bounding box touches, clipped to the raster.

    If the box is in another coordinate system than the raster, its edges, which may be curved in the raster's system,
    are followed point by point. Longitudes of the box and of the raster may count from -180 or from 0. A box with
    west > east crosses the antimeridian.

    Args:
        box: (west, south, east, north).
        box_crs: coordinate system of the box; None means the raster's own.
        georeference: georeference of the raster.
        size: (height, width) of the raster, in pixels.
        name: name of the raster in error messages.

    Raises:
        OutsideError: the box lies outside the raster.
        InputError: the raster has no usable georeference, or the box covers two opposite ends of it.
        OptionError: the box or its coordinate system is invalid.

    """
    placed, grid = located_grid(georeference, size, name)
    system = box_system(box_crs, placed, grid, name)
    west, south, east, north = box
    if west > east:
        if not system.geographic:
            raise OptionError(
                f"bbox must have its west below its east where x is not a longitude, got {text(box)}", param="bbox"
            )
        east += TURN
    windows = system.windows((west, south, east, north))
    box_text = f"bbox {text(box)}{f' in {box_crs[:60]}' if box_crs else ''}"
    if not windows:
        degrees = box_crs is None and not system.geographic and max(map(abs, box)) <= TURN
        hint = '; for longitudes and latitudes set bbox_crs="EPSG:4326"' * degrees
        raise OutsideError(
            f"{box_text} lies outside of {name}, which covers {text(system.extent())} there{hint}", param="bbox"
        )
    joined = _joined(windows)
    if joined is None:
        parts = " and ".join(f"({window})" for window in windows)
        raise InputError(f"{box_text} covers two ends of {name}, {parts}; request one after the other", param="bbox")
    return joined


def box_system(crs: str | None, raster: Georeference, grid: PixelGrid, name: str, option: Option = "bbox") -> BoxSystem:
    """Return the `BoxSystem` that converts bounding boxes in the system ``crs`` to pixel windows of a raster.

    ``name`` is the name of the raster. Raise an error that names ``option`` if PROJ cannot convert the boxes. If
    ``crs`` is None, the boxes are in the raster's own coordinate system.
    """
    if crs is None or crs == raster.crs:
        geographic = is_geographic(raster.crs)
        return BoxSystem(grid, None, geographic=geographic, raster_geographic=geographic)
    crs_option, remedy = _CRS_OPTIONS[option]
    if raster.crs is None:
        raise InputError(
            f"{name} has {raster.why_no_crs}, so {_NOUNS[option]} in {crs[:60]} cannot be found in it; {remedy}",
            param=crs_option,
        )
    try:
        there = rasterio_crs(crs)
    except InputError as error:
        raise OptionError(
            f'{crs_option} must be a coordinate system, as "EPSG:4326": {error}', param=crs_option
        ) from error
    if not (there.is_geographic or there.is_projected):
        raise OptionError(
            f'{crs_option} must be a geographic or projected system ("EPSG:4326"), got {shown(crs)}, which is neither',
            param=crs_option,
        )
    try:
        own = rasterio_crs(raster.crs)
    except InputError as error:
        raise InputError(
            f"{name} has a coordinate system that cannot be used ({error}); {remedy}", param=crs_option
        ) from error
    if not can_transform(there, own):
        raise InputError(
            f"PROJ cannot transform {crs[:60]} to the coordinate system of {name}; {remedy}", param=crs_option
        )
    systems = None if there == own else (there, own)
    return BoxSystem(grid, systems, geographic=there.is_geographic, raster_geographic=own.is_geographic)


def can_transform(source: CRS, target: CRS) -> bool:
    """Return whether PROJ can transform coordinates between two systems. PROJ cannot do this between two planets."""
    try:
        transform(source, target, [0.0], [0.0])
    except CPLE_NotSupportedError:
        return False
    except CPLE_BaseError:  # the systems are compatible, only the point (0, 0) is not
        return True
    return True


def is_geographic(crs: str | None) -> bool:
    """Return whether the x coordinates of a system are longitudes. Return False for an unknown or invalid system."""
    try:
        return crs is not None and bool(rasterio_crs(crs).is_geographic)
    except InputError:  # refused as it may name a file
        return False


def located_grid(
    georeference: Georeference | None, size: tuple[int, int], name: str, option: Option = "bbox"
) -> tuple[Georeference, PixelGrid]:
    """Return the georeference and the pixel grid of a raster. Raise InputError if either is missing.

    The error names ``option``, the request option that needs them.
    """
    noun, remedy = _NOUNS[option], "use window=(row, col, height, width)"
    if georeference is None:
        raise InputError(f"{name} has no georeference, so {noun} cannot be found in it; {remedy}", param=option)
    if georeference.transform is None:
        has = "ground control points" if georeference.gcps else "RPCs" if georeference.rpcs else "a coordinate system"
        raise InputError(
            f"{name} has {has} but no transform, so {noun} cannot be found in it; warp it first, as with gdalwarp, or"
            f" {remedy}",
            param=option,
        )
    a, b, _, d, e, _ = georeference.transform
    if a * e == b * d:
        raise InputError(
            f"{name} has pixels without an area, its transform is {georeference.transform}; {remedy}", param=option
        )
    return georeference, PixelGrid(georeference.transform, size)


def _joined(windows: Sequence[Window]) -> Window | None:
    """Return the smallest window around all ``windows``, or None if there is a gap between them."""
    whole, *others = sorted(windows, key=lambda window: (window.col, window.row))
    for other in others:
        apart = other.row > whole.row + whole.height or whole.row > other.row + other.height
        if apart or other.col > whole.col + whole.width:
            return None
        row = min(whole.row, other.row)
        lower = max(whole.row + whole.height, other.row + other.height)
        right = max(whole.col + whole.width, other.col + other.width)
        whole = Window(row, whole.col, lower - row, right - whole.col)
    return whole
