"""Class `Georeference`: coordinate system and position of a raster, read from files and written to them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rasterio.control import GroundControlPoint as RasterioPoint
from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.rpc import RPC
from rasterio.transform import Affine as RasterioAffine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.syntax import shown
from vllm_mmout.geo.raster.crs.text import rasterio_crs
from vllm_mmout.geo.raster.gdal_datasets import one_pixel
from vllm_mmout.geo.raster.geokeys import KEY_TAGS, GeoKeys, Keys
from vllm_mmout.geo.raster.ground_points import Affine, GroundControlPoint
from vllm_mmout.geo.raster.tags import GeoTag

_MOST_KEPT = 1000
"""Largest number of values in a file's georeference tags. If there are more, the parsed georeference is not cached."""
_FARTHEST = 1e100
"""Largest accepted coordinate of a raster's corner. The square of such a number is still finite."""
PLACING_TAGS = (33550, 33922, 34264, 50844)
"""Numbers of the TIFF tags that tie pixels to coordinates: pixel scale, tie points, matrix and RPCs (GDAL RFC 22)."""
GEO_TAGS = frozenset({*KEY_TAGS, *PLACING_TAGS})
"""Numbers of all TIFF tags that define a georeference."""
_PLACING = ("EPSG:", "PROJCS[", "GEOGCS[", "GEOCCS[", "PROJCRS[", "GEOGCRS[")
"""Prefixes of the texts ("EPSG:n" or WKT) of coordinate systems on Earth. Local coordinate systems have other prefixes.

For GeoTIFF keys that GDAL does not understand, GDAL returns a local coordinate system, which is ignored."""
_SYSTEMS = frozenset({"ProjectedCRS", "GeographicCRS", "GeodeticCRS"})
"""PROJJSON types of the coordinate systems that place a pixel on Earth and that a GeoTIFF can hold."""
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Transform that rasterio reports for a raster without a transform."""


@dataclass(frozen=True, slots=True)
class Georeference:
    """Coordinate system and position of a raster.

    Raises:
        InputError: a field is malformed, or a transform and ground control points are both given.

    """

    crs: str | None = None
    """Coordinate system of ``transform`` as "EPSG:n", as WKT if it lacks an EPSG code, or None if unknown."""
    transform: Affine | None = None
    """Transform (a, b, c, d, e, f) of pixel corners to coordinates, as rasterio's ``Affine``, or None if unknown."""
    gcps: tuple[GroundControlPoint, ...] = ()
    """Ground control points; empty if there is a transform."""
    gcps_crs: str | None = None
    """Coordinate system of the ground control points ``gcps``."""
    pixel_is_point: bool = False
    """Whether a pixel is a sample at the pixel's centre rather than an average over its area (GeoTIFF's
    RasterPixelIsPoint). ``transform`` refers to pixel corners in both cases."""
    rpcs: RPC | None = field(default=None, repr=False)
    """Rational polynomial coefficients (RPCs) as rasterio's ``RPC``, in the convention of GDAL's RFC 22."""
    unread_keys: Keys = field(default_factory=dict, repr=False)
    """GeoTIFF keys of the file's coordinate system, if GDAL does not understand the keys. Otherwise empty."""

    def __post_init__(self) -> None:
        for name in ("crs", "gcps_crs"):
            object.__setattr__(self, name, _checked_crs(name, getattr(self, name)))
        if self.crs is not None or self.gcps_crs is not None:
            object.__setattr__(self, "unread_keys", {})
        if self.transform is not None:
            object.__setattr__(self, "transform", _checked_transform(self.transform))
        object.__setattr__(self, "gcps", tuple(self.gcps))
        if self.transform is not None and self.gcps:
            raise InputError(f"transform and {len(self.gcps)} gcps are both set; a GeoTIFF holds one of them, give one")
        if self.gcps_crs is not None and not self.gcps:
            raise InputError(f"gcps_crs is {self.gcps_crs!r} without gcps; give the gcps, or set crs instead")

    @classmethod
    def from_tags(cls, tags: Iterable[GeoTag]) -> Georeference | None:
        """Read the georeference from TIFF tags, as GDAL does.

        Args:
            tags: tags of one directory; tags that are not in `GEO_TAGS` are ignored.

        Returns:
            The georeference, or None if there is no geo tag.

        """
        geo_tags = tuple(tag for tag in tags if tag.code in GEO_TAGS)
        if not geo_tags:
            return None
        return (_of_tags if sum(tag.count for tag in geo_tags) < _MOST_KEPT else _of_tags.__wrapped__)(geo_tags)

    @classmethod
    def from_rasterio(cls, dataset: Any) -> Georeference | None:
        """Read the georeference from rasterio's ``DatasetReader``, or return None if the dataset has none."""
        transform = tuple(dataset.transform)[:6]
        placed = transform != _IDENTITY and all(map(math.isfinite, transform))
        points, points_crs = dataset.gcps
        rpcs, point = dataset.rpcs, dataset.tags().get("AREA_OR_POINT") == "Point"
        try:
            crs = crs_text(dataset.crs)
        except CRSError:  # its numbers are invalid
            crs = None
        gcps = () if placed else tuple(GroundControlPoint(p.row, p.col, p.x, p.y, p.z or 0.0) for p in points)
        if crs is None and not (placed or gcps or rpcs or point):
            return None
        return cls(
            crs=None if gcps else crs,
            transform=transform if placed else None,
            gcps=gcps,
            gcps_crs=crs_text(points_crs) if gcps else None,
            pixel_is_point=point,
            rpcs=rpcs,
        )

    def to_rasterio(self) -> dict[str, Any]:
        """Return keyword arguments for ``rasterio.open`` that write the georeference to a GeoTIFF.

        The keys are crs, transform, gcps and rpcs, each only if it is known.

        Raises:
            InputError: the coordinate system cannot be written to a GeoTIFF.

        """
        crs = self.crs or self.gcps_crs
        arguments: dict[str, Any] = {} if crs is None else {"crs": _writable_crs(crs)}
        if self.transform is not None:
            arguments["transform"] = RasterioAffine(*self.transform)
        if self.gcps:
            arguments["gcps"] = [RasterioPoint(p.row, p.col, p.x, p.y, p.z) for p in self.gcps]
            arguments.setdefault("crs", CRS())  # rasterio requires it with points
        return arguments if self.rpcs is None else {**arguments, "rpcs": self.rpcs}

    @property
    def why_no_crs(self) -> str:
        """Reason why ``crs`` is None, for messages: no coordinate system, or one that GDAL does not understand."""
        if not self.unread_keys:
            return "no coordinate system"
        return (
            "a coordinate system that its GeoTIFF keys define in a form that is not understood here (assign it, as"
            " with gdal_edit.py -a_srs)"
        )

    def is_usable(self, size: tuple[int, int]) -> bool:
        """Return whether the corners of a raster of ``size`` have finite coordinates, small enough to compute with.

        Args:
            size: (height, width) of the raster, in pixels.

        """
        if self.transform is None:
            return True
        a, b, c, d, e, f = self.transform
        corners = [(col, row) for col in (0, size[1]) for row in (0, size[0])]
        places = [place for col, row in corners for place in (a * col + b * row + c, d * col + e * row + f)]
        return all(abs(place) <= _FARTHEST for place in places)  # false for NaN

    def shifted(self, row: int, col: int) -> Georeference:
        """Return the georeference of a part of the raster that begins at pixel ``row``, ``col``.

        Args:
            row: first row of the part.
            col: first column of the part.

        """
        if (row, col) == (0, 0):
            return self
        transform, rpcs = self.transform, copy(self.rpcs)
        if rpcs is not None:
            rpcs.line_off, rpcs.samp_off = rpcs.line_off - row, rpcs.samp_off - col
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = (a, b, a * col + b * row + c, d, e, d * col + e * row + f)
        return replace(
            self,
            transform=transform,
            gcps=tuple(replace(gcp, row=gcp.row - row, col=gcp.col - col) for gcp in self.gcps),
            rpcs=rpcs,
        )

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Georeference:
        """Return the georeference of the raster resampled from size ``old`` to size ``new`` over the same extent.

        Args:
            old: (height, width) of the raster of this georeference, in pixels.
            new: (height, width) of the other raster, in pixels.

        Returns:
            This georeference if the sizes are equal, otherwise a new one without RPC coefficients, which are valid for
            the old pixels only.

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
            rpcs=None,
        )


@lru_cache(maxsize=64)
def _of_tags(tags: tuple[GeoTag, ...]) -> Georeference:
    """Return the georeference that GDAL parses from TIFF tags. Georeferences are cached, as parsing is slow."""
    by_code = {tag.code: tag for tag in tags}
    keys = GeoKeys.from_tags(by_code)
    placing = [GeoTag.doubles(code, by_code[code].numbers) for code in PLACING_TAGS if code in by_code]
    with one_pixel([*keys.tags, *placing]) as dataset:
        place = Georeference.from_rasterio(dataset) or Georeference()
    crs = place.crs or place.gcps_crs
    crs = keys.refused_wkt or (crs if crs is not None and keys.system and crs.startswith(_PLACING) else None)
    return replace(
        place,
        crs=None if place.gcps else crs,
        gcps_crs=crs if place.gcps else None,
        unread_keys=keys.system if crs is None else {},
    )


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


def _writable_crs(text: str) -> CRS:
    """Parse a coordinate system, and raise InputError if a GeoTIFF cannot hold it."""
    crs = rasterio_crs(text)
    if _placing(crs) is None:
        raise InputError(
            f"the coordinate system {shown(text)} cannot be written to a GeoTIFF; give a projected, geographic or"
            ' geocentric one, as "EPSG:n"; reproject an input such as NetCDF or VRT first, for example with gdalwarp'
            " -t_srs EPSG:4326 in.nc in.tif"
        )
    return crs


def crs_text(crs: CRS | None) -> str | None:
    """Return the horizontal part of a coordinate system as "EPSG:n", or as WKT if its code is unknown."""
    if not crs:
        return None
    described = crs.to_dict(projjson=True)
    if described.get("type") == "CompoundCRS":
        return crs_text(CRS.from_dict(described["components"][0]))
    code = crs.to_epsg()
    if code is not None and _placing(crs) is not None and _datum(crs) == _datum(CRS.from_epsg(code)):
        return f"EPSG:{code}"
    wkt: str = crs.to_wkt()
    return wkt


def epsg_code(text: str) -> int | None:
    """Return the number n of the text "EPSG:n", or the EPSG code at the end of a WKT. Return None for other texts."""
    closing = r'(?:AUTHORITY\["EPSG","|ID\["EPSG",)(\d+)"?\]\s*\]\s*$'
    match = re.fullmatch(r"\s*EPSG:(\d+)\s*", text, re.IGNORECASE) or re.search(closing, text)
    return int(match[1]) if match else None


def _placing(crs: CRS) -> dict[str, Any] | None:
    """Return a CRS, or a bound CRS's source, as PROJJSON. Return None if the CRS does not place pixels on Earth."""
    described: dict[str, Any] = crs.to_dict(projjson=True)
    described = described.get("source_crs", described)
    return described if described.get("type") in _SYSTEMS else None


def _datum(crs: CRS) -> str | None:
    """Return the name of a CRS's datum, or None if the CRS includes a transformation to another datum (a bound CRS).

    The datum must be compared because GDAL finds an EPSG code even for a system whose unknown datum is 100 m off.
    """
    described: dict[str, Any] = crs.to_dict(projjson=True)
    base = described.get("base_crs", described)
    name: str = (base.get("datum") or base.get("datum_ensemble") or {}).get("name", "")
    return name.removesuffix(" ensemble") or None
