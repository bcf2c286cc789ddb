"""Bounding boxes in coordinates, as windows of a raster's pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.raster.box.pixel_grid import PixelGrid
from vllm_mmout.raster.box.rings import TURN, Box
from vllm_mmout.raster.box.systems import box_system, text
from vllm_mmout.raster.geotag import RPC_COEFFICIENTS
from vllm_mmout.raster.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_mmout.raster.georeference import Georeference


def window_of_box(
    box: Box, box_crs: str | None, georeference: Georeference | None, size: tuple[int, int], name: str
) -> Window:
    """The pixels that a box touches, as far as the raster goes; of a rotated raster the window around them.

    A box in another system than the raster's is followed along its edges, which may be curved there. Longitudes may be
    counted from -180 or from 0, in the box and in the raster; a box whose west is above its east crosses the
    antimeridian.

    Args:
        box: (west, south, east, north), longitude before latitude.
        box_crs: its coordinate system as PROJ knows it, "EPSG:4326" or another; None: the raster's own.
        georeference: that of the raster.
        size: its height and width.
        name: what to call the raster in an error.

    Raises:
        InputError: the raster has no coordinates, or the box lies outside of it, or at two ends of it.
        OptionError: the coordinate system is not known, or pyproj, which knows others than the raster's, not installed.

    """
    grid = _grid(georeference, size, name)
    if box_crs is not None and georeference is not None and georeference.unread_keys:
        raise InputError(
            f"{name} has {georeference.why_no_crs}, so a bbox in {box_crs[:60]} cannot be found in it; or leave"
            " bbox_crs out, for a bbox in its own coordinates",
            param="bbox_crs",
        )
    system = box_system(box_crs, grid, name)
    west, south, east, north = box
    if west > east:
        if not system.geographic:
            raise OptionError(
                f"bbox must have its west below its east where x is no longitude, got {text(box)}", param="bbox"
            )
        east += TURN
    areas = system.areas((west, south, east, north))
    windows = [window for area in areas if (window := grid.window(area)) is not None]
    said = f"bbox {text(box)}{f' in {box_crs[:60]}' if box_crs else ''}"
    if not windows:
        degrees = box_crs is None and not system.geographic and max(map(abs, box)) <= TURN
        hint = '; for longitudes and latitudes say bbox_crs="EPSG:4326"' * degrees
        raise InputError(
            f"{said} lies outside of {name}, which covers {text(system.extent())} there{hint}", param="bbox"
        )
    joined = _joined(windows)
    if joined is None:
        parts = " and ".join(f"({window})" for window in windows)
        raise InputError(f"{said} lies at two ends of {name}, {parts}; ask for one after the other", param="bbox")
    return joined


def _grid(georeference: Georeference | None, size: tuple[int, int], name: str) -> PixelGrid:
    remedy = "use window=(row, col, height, width)"
    if georeference is None:
        raise InputError(f"{name} says nothing of its place, so a bbox cannot be found in it; {remedy}", param="bbox")
    if georeference.transform is None:
        rpcs = any(tag.code == RPC_COEFFICIENTS for tag in georeference.tags)
        has = "ground control points" if georeference.gcps else "RPCs" if rpcs else "a coordinate system"
        raise InputError(
            f"{name} has {has} but no transform, so a bbox cannot be found in it; warp it first, as with gdalwarp, or"
            f" {remedy}",
            param="bbox",
        )
    a, b, _, d, e, _ = georeference.transform
    if a * e == b * d:
        raise InputError(
            f"{name} has pixels without an area, its transform is {georeference.transform}; {remedy}", param="bbox"
        )
    return PixelGrid(georeference.transform, georeference.crs, size)


def _joined(windows: Sequence[Window]) -> Window | None:
    """One window of several that touch each other; None where there is something between them."""
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
