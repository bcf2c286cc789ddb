"""Compute the bounding box of an area of interest, or two boxes if the area crosses the antimeridian."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.area.polygons import AreaFeature
from vllm_mmout.geo.raster.bounding_box import is_geographic
from vllm_mmout.geo.raster.pixel_grid import TURN, Box, extent, ring

if TYPE_CHECKING:
    from vllm_mmout.geo.area.polygons import Area, Ring

_HALF: Final = TURN / 2


def outline(area: Area) -> Area:
    """Return the outline of an area, as an `Area` of one or two bounding boxes.

    An area in longitudes and latitudes gets two boxes if there is a gap between the longitudes of its polygons. The
    boxes are on both sides of the widest gap. An area that crosses the antimeridian, or is divided there, gets a box on
    each side of the antimeridian.

    Raises:
        InputError: a ring of the area encloses a pole.
    """
    rings = [polygon[0] for feature in area.features for polygon in feature.polygons]
    boxes = np.array([box_of(places) for places in rings])
    parts = [boxes]
    if is_geographic(area.crs):
        boxes = np.concatenate([_in_usual_range(box_of(without_jumps(places)[0])) for places in rings])
        boxes = boxes[np.argsort(boxes[:, 0])]
        gaps = boxes[1:, 0] - np.maximum.accumulate(boxes[:-1, 2])
        at = 1 + int(gaps.argmax()) if gaps.size and gaps.max() > 0 else len(boxes)
        parts = [part for part in (boxes[:at], boxes[at:]) if len(part)]
    borders = [ring((*part[:, :2].min(axis=0).tolist(), *part[:, 2:].max(axis=0).tolist()), 1) for part in parts]
    polygons = tuple((np.stack(border, axis=1),) for border in borders)
    return replace(area, features=(AreaFeature("outline", {}, polygons),))


def without_jumps(places: Ring) -> tuple[Ring, str | None]:
    """Shift longitudes of a ring by 360 degrees where an edge crosses the antimeridian, so that the ring is continuous.

    An edge from -180 to 180 is kept: it is that of a map of the world. If an edge was taken to cross the antimeridian,
    the second value is a sentence that says so.
    """
    x = places[:, 0]
    world = (np.abs(x[1:]) == _HALF) & (np.abs(x[:-1]) == _HALF)
    jumps = np.where((np.abs(np.diff(x)) > _HALF) & ~world, -TURN * np.sign(np.diff(x)), 0.0)
    if not jumps.any():
        return places, None
    if jumps.sum():
        raise InputError("aoi has a ring around a pole; split it at the antimeridian (RFC 7946, 3.1.9)", param="aoi")
    first, last = x[:-1][jumps != 0][0], x[1:][jumps != 0][0]
    sentence = (
        f"aoi has an edge from longitude {first:.10g} to {last:.10g}, which was taken to cross the antimeridian;"
        " divide a longer edge by a position between them"
    )
    return np.stack([x + np.concatenate([[0.0], np.cumsum(jumps)]), places[:, 1]], axis=1), sentence


def box_of(places: Ring) -> Box:
    """Return the bounding box of a ring."""
    return extent((places[:, 0], places[:, 1]))


def _in_usual_range(box: Box) -> NDArray[np.float64]:
    """Return a box with longitudes from -180 to 180, [1, 4]. Divide a box across the antimeridian into two, [2, 4]."""
    west, south, east, north = box
    if east - west >= TURN:
        return np.array([[-_HALF, south, _HALF, north]])
    turn = TURN * np.floor((west + _HALF) / TURN)
    west, east = west - turn, east - turn
    if east <= _HALF:
        return np.array([[west, south, east, north]])
    return np.array([[west, south, _HALF, north], [-_HALF, south, east - TURN, north]])
