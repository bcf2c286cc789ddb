"""Georeference: where on Earth a raster lies, and the very tags of the file that said so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.gdal.datasets import has_rasterio
from vllm_mmout.raster.gdal.names import EXTRA
from vllm_mmout.raster.geokeys import GeoKeys, epsg_code, key_tags
from vllm_mmout.raster.geotag import GEO_TAGS, KEY_TAGS, PLACEMENT_TAGS, RPC_COEFFICIENTS, GeoTag
from vllm_mmout.raster.placement import (
    Affine,
    GroundControlPoint,
    gcps_from_tags,
    placement_tags,
    transform_from_tags,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_mmout.raster.projection import Keys

_FARTHEST = 1e100
"""The largest coordinate of a corner: its square, and what becomes of it, are still numbers."""


@dataclass(frozen=True, slots=True)
class Georeference:
    """Coordinate system and position of a raster.

    One that was read from a file keeps that file's tags and is written with them, digit by digit. Where a field was
    changed since (`dataclasses.replace`), the tags that no longer say what the fields say are made anew.

    Raises:
        InputError: a field is malformed, or a transform and ground control points are both given.

    """

    crs: str | None = None
    """Coordinate system of ``transform``: "EPSG:n", or WKT where no code is known; None if unknown."""
    transform: Affine | None = None
    """Pixel corner to coordinates, (a, b, c, d, e, f) as rasterio's ``Affine``; None without one."""
    gcps: tuple[GroundControlPoint, ...] = ()
    """Ground control points, where there is no transform."""
    gcps_crs: str | None = None
    """Coordinate system of ``gcps``."""
    pixel_is_point: bool = False
    """Whether a pixel stands for the point in its middle; ``transform`` counts from its corner all the same."""
    tags: tuple[GeoTag, ...] = field(default=(), repr=False)
    """Geo tags of the file this comes from, among them RPC coefficients."""

    def __post_init__(self) -> None:
        for name in ("crs", "gcps_crs"):
            object.__setattr__(self, name, _checked_crs(name, getattr(self, name)))
        if self.transform is not None:
            object.__setattr__(self, "transform", _checked_transform(self.transform))
        object.__setattr__(self, "gcps", tuple(self.gcps))
        object.__setattr__(self, "tags", tuple(self.tags))
        if self.transform is not None and self.gcps:
            raise InputError(f"transform and {len(self.gcps)} gcps are both set; a GeoTIFF holds one of them, give one")
        if self.gcps_crs is not None and not self.gcps:
            raise InputError(f"gcps_crs is {self.gcps_crs!r} without gcps; give the gcps, or set crs instead")

    @classmethod
    def from_tags(cls, tags: Iterable[GeoTag]) -> Georeference | None:
        """Read the geo tags of a file.

        Args:
            tags: tags of one TIFF directory; others than `GEO_TAGS` are passed over.

        Returns:
            What the tags say, None if no geo tag is among them.

        """
        found = tuple(tag for tag in tags if tag.code in GEO_TAGS)
        if not found:
            return None
        by_code = {tag.code: tag for tag in found}
        keys = GeoKeys.from_tags(by_code)
        gcps = gcps_from_tags(by_code, pixel_is_point=keys.pixel_is_point)
        return cls(
            crs=None if gcps else keys.crs,
            transform=transform_from_tags(by_code, pixel_is_point=keys.pixel_is_point),
            gcps=gcps,
            gcps_crs=keys.crs if gcps else None,
            pixel_is_point=keys.pixel_is_point,
            tags=found,
        )

    @property
    def unread_keys(self) -> Keys:
        """The keys of a coordinate system that the file has and that is not understood, so that ``crs`` is None."""
        if self.crs is not None or self.gcps_crs is not None:
            return {}
        keys = GeoKeys.from_tags({tag.code: tag for tag in self.tags})
        return keys.system if keys.crs is None else {}

    @property
    def why_no_crs(self) -> str:
        """What a raster has where ``crs`` is None, for an error: no system, or one that is not understood."""
        if not self.unread_keys:
            return "no coordinate system"
        remedy = "assign it, as with gdal_edit.py -a_srs" if has_rasterio() else f"GDAL may do: {EXTRA}"
        return f"a coordinate system that its GeoTIFF keys spell out in a way that is not understood here ({remedy})"

    def is_usable(self, size: tuple[int, int]) -> bool:
        """Whether a transform puts the corners of a raster where numbers are, so that its areas are numbers too.

        Args:
            size: (height, width) of the raster, in pixels.

        """
        if self.transform is None:
            return True
        a, b, c, d, e, f = self.transform
        corners = [(col, row) for col in (0, size[1]) for row in (0, size[0])]
        places = [place for col, row in corners for place in (a * col + b * row + c, d * col + e * row + f)]
        return all(abs(place) <= _FARTHEST for place in places)  # NaN is not

    def shifted(self, row: int, col: int) -> Georeference:
        """That of the part of a raster that starts at a pixel of it, in pixels of the same size.

        Args:
            row: first row of the part.
            col: its first column.

        """
        if (row, col) == (0, 0):
            return self
        transform = self.transform
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = (a, b, a * col + b * row + c, d, e, d * col + e * row + f)
        return replace(
            self,
            transform=transform,
            gcps=tuple(replace(gcp, row=gcp.row - row, col=gcp.col - col) for gcp in self.gcps),
            tags=tuple(_shifted_rpc(tag, row, col) if tag.code == RPC_COEFFICIENTS else tag for tag in self.tags),
        )

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Georeference:
        """That of a raster which covers the same extent in another number of pixels.

        Args:
            old: (height, width) of the raster that this one belongs to, in pixels.
            new: (height, width) of the other.

        Returns:
            This one if the sizes are equal. RPC coefficients hold for the old pixels alone, and are left out.

        """
        if old == new:
            return self
        transform = self.transform
        if transform is not None:
            a, b, c, d, e, f = transform
            rows, cols = old[0] / new[0], old[1] / new[1]
            transform = (a * cols, b * rows, c, d * cols, e * rows, f)
        return replace(
            self,
            transform=transform,
            gcps=tuple(replace(gcp, row=gcp.row * new[0] / old[0], col=gcp.col * new[1] / old[1]) for gcp in self.gcps),
            tags=tuple(tag for tag in self.tags if tag.code != RPC_COEFFICIENTS),
        )

    def to_tags(self) -> tuple[GeoTag, ...]:
        """The tags to write: those of the source file as far as they say what the fields say, else new ones.

        Raises:
            InputError: the coordinate system cannot be written to a GeoTIFF.

        """
        source = Georeference.from_tags(self.tags) or Georeference()
        same_keys = (self.crs, self.gcps_crs, self.pixel_is_point) == (
            source.crs,
            source.gcps_crs,
            source.pixel_is_point,
        )
        same_place = (self.transform, self.gcps, self.pixel_is_point) == (
            source.transform,
            source.gcps,
            source.pixel_is_point,
        )
        carried = [
            tag
            for tag in self.tags
            if (tag.code not in KEY_TAGS or same_keys) and (tag.code not in PLACEMENT_TAGS or same_place)
        ]
        if not same_keys:
            carried += key_tags(self.crs or self.gcps_crs, pixel_is_point=self.pixel_is_point)
        if not same_place:
            carried += placement_tags(self.transform, self.gcps, pixel_is_point=self.pixel_is_point)
        return tuple(sorted(carried, key=lambda tag: tag.code))


def _shifted_rpc(tag: GeoTag, row: int, col: int) -> GeoTag:
    """The coefficients with their offsets of line and sample, numbers 2 and 3 of 92 (GDAL's RFC 22), moved along."""
    numbers = list(tag.numbers)
    if len(numbers) < 4:
        return tag
    numbers[2] -= row
    numbers[3] -= col
    return replace(tag, value=tuple(numbers))


def _checked_crs(name: str, crs: str | None) -> str | None:
    if crs is None:
        return None
    if not crs.strip():
        raise InputError(f'{name} must be "EPSG:n", WKT or None, got {crs!r}')
    code = epsg_code(crs)
    return crs if code is None else f"EPSG:{code}"


def _checked_transform(transform: Affine) -> Affine:
    numbers = tuple(float(number) for number in transform)
    if len(numbers) != 6 or not all(math.isfinite(number) for number in numbers):
        raise InputError(f"transform must be six finite numbers (a, b, c, d, e, f), got {transform!r}")
    a, b, c, d, e, f = numbers
    return (a, b, c, d, e, f)
