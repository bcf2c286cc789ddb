"""Affine transforms and ground control points, and the TIFF tags that hold them.

Pixel coordinates count from the upper left corner of the upper left pixel, as in GDAL. In a file whose raster type is
PixelIsPoint they count from that pixel's centre, so that half a pixel lies between the two (OGC 19-008, 7.1.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.raster.geotag import MODEL_PIXEL_SCALE, MODEL_TIEPOINT, MODEL_TRANSFORMATION, GeoTag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Affine: TypeAlias = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): x = a * column + b * row + c; y = d * column + e * row + f. The order of rasterio's Affine."""


@dataclass(frozen=True, slots=True)
class GroundControlPoint:
    """A place of the raster whose coordinates are known."""

    row: float
    """From the upper edge, in pixels."""
    col: float
    """From the left edge, in pixels."""
    x: float
    y: float
    z: float = 0.0


def transform_from_tags(tags: Mapping[int, GeoTag], *, pixel_is_point: bool) -> Affine | None:
    """The affine transform that the tags say, None if they say none.

    Computed in the order in which GDAL does it, so that every digit agrees. As there, a scale wins over a matrix, and a
    negative scale of the rows is taken for a positive one: writers of such files mean north up. One that is not finite
    counts as none.
    """
    transform = _stated_transform(tags, pixel_is_point=pixel_is_point)
    return transform if transform is not None and all(math.isfinite(number) for number in transform) else None


def _stated_transform(tags: Mapping[int, GeoTag], *, pixel_is_point: bool) -> Affine | None:
    scale = _numbers(tags, MODEL_PIXEL_SCALE)
    if len(scale) >= 2 and scale[0] != 0 and scale[1] != 0:
        a, e = scale[0], -abs(scale[1])
        tie = _numbers(tags, MODEL_TIEPOINT)
        if len(tie) < 6:
            return (a, 0.0, 0.0, 0.0, e, 0.0)
        return _at_corner((a, 0.0, tie[3] - tie[0] * a, 0.0, e, tie[4] - tie[1] * e), pixel_is_point=pixel_is_point)
    matrix = _numbers(tags, MODEL_TRANSFORMATION)
    if len(matrix) == 16:
        a, b, _, c, d, e, _, f = matrix[:8]
        return _at_corner((a, b, c, d, e, f), pixel_is_point=pixel_is_point)
    return None


def gcps_from_tags(tags: Mapping[int, GeoTag], *, pixel_is_point: bool) -> tuple[GroundControlPoint, ...]:
    """The ground control points that the tags hold: the tie points of a file that has no transform."""
    if transform_from_tags(tags, pixel_is_point=pixel_is_point) is not None:
        return ()
    ties = _numbers(tags, MODEL_TIEPOINT)
    shift = 0.5 if pixel_is_point else 0.0
    return tuple(
        GroundControlPoint(
            row=ties[at + 1] + shift, col=ties[at] + shift, x=ties[at + 3], y=ties[at + 4], z=ties[at + 5]
        )
        for at in range(0, len(ties) - 5, 6)
    )


def placement_tags(
    transform: Affine | None, gcps: Sequence[GroundControlPoint], *, pixel_is_point: bool
) -> tuple[GeoTag, ...]:
    """Tags for a transform, or for ground control points where there is none."""
    shift = 0.5 if pixel_is_point else 0.0
    if transform is None:
        ties = [n for p in gcps for n in (p.col - shift, p.row - shift, 0.0, p.x, p.y, p.z)]
        return (GeoTag.doubles(MODEL_TIEPOINT, ties),) if ties else ()
    a, b, c, d, e, f = transform
    c, f = c + (a + b) * shift, f + (d + e) * shift
    if b == 0 and d == 0 and a > 0 and e < 0:
        return (
            GeoTag.doubles(MODEL_PIXEL_SCALE, (a, -e, 0.0)),
            GeoTag.doubles(MODEL_TIEPOINT, (0.0, 0.0, 0.0, c, f, 0.0)),
        )
    matrix = (a, b, 0.0, c, d, e, 0.0, f, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    return (GeoTag.doubles(MODEL_TRANSFORMATION, matrix),)


def _at_corner(transform: Affine, *, pixel_is_point: bool) -> Affine:
    """The transform from the corner of the pixel, given that from the centre in a PixelIsPoint file."""
    if not pixel_is_point:
        return transform
    a, b, c, d, e, f = transform
    return (a, b, c - (a * 0.5 + b * 0.5), d, e, f - (d * 0.5 + e * 0.5))


def _numbers(tags: Mapping[int, GeoTag], code: int) -> tuple[float, ...]:
    return tags[code].numbers if code in tags else ()
