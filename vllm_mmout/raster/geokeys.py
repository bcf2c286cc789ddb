"""The keys inside the GeoKeyDirectory tag that name a coordinate system (OGC 19-008, 7.1.1 and annex D)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.crs_units import metres_of
from vllm_mmout.raster.epsg import crs_kind
from vllm_mmout.raster.gdal.keys import system_by_gdal, told_to_gdal
from vllm_mmout.raster.geographic_keys import geographic_keys
from vllm_mmout.raster.geotag import GEO_ASCII_PARAMS, GEO_DOUBLE_PARAMS, GEO_KEY_DIRECTORY, GeoTag
from vllm_mmout.raster.projection import geographic_from_keys, linear_unit, wkt_from_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_mmout.raster.projection import Keys

MODEL_TYPE = 1024
RASTER_TYPE = 1025
GEODETIC_CRS = 2048
PROJECTED_CRS = 3072
PROJECTED_CITATION = 3073
VERTICAL = 4096

PROJECTED, GEOGRAPHIC, GEOCENTRIC = 1, 2, 3
PIXEL_IS_AREA, PIXEL_IS_POINT = 1, 2
USER_DEFINED = 32767
_TELLING = frozenset({GEODETIC_CRS, 2050, 2056, 2057, PROJECTED_CRS, 3074, 3075})
"""Keys of systems, datums, ellipsoids and projections: one of them is there where a system is told."""
_SAME_UNIT = 1e-8
"""Part by which two numbers for one unit may differ: the feet differ by 2e-6."""

_WKT_MARK = "ESRI PE String = "
"""Where Esri's software and GDAL put the WKT of a system that has no keys: before it, in the projected citation."""
_LONGEST_WKT = 2300
"""GDAL reads the citation into a buffer of 2400 bytes."""
_MODELS = {"projected": PROJECTED, "geographic": GEOGRAPHIC, "geocentric": GEOCENTRIC}


@dataclass(frozen=True, slots=True)
class GeoKeys:
    """The keys of one file, by number."""

    values: Keys
    """SHORT keys as integers, DOUBLE ones as tuples, ASCII ones as text without the closing "|"."""

    @classmethod
    def from_tags(cls, tags: Mapping[int, GeoTag]) -> GeoKeys:
        """Read the keys; those that point outside their tag are left out, as GDAL does."""
        directory = [int(n) for n in tags[GEO_KEY_DIRECTORY].numbers] if GEO_KEY_DIRECTORY in tags else []
        doubles = tags[GEO_DOUBLE_PARAMS].numbers if GEO_DOUBLE_PARAMS in tags else ()
        ascii_tag = tags[GEO_ASCII_PARAMS].value if GEO_ASCII_PARAMS in tags else b""
        text = ascii_tag if isinstance(ascii_tag, bytes) else b""
        values: dict[int, int | str | tuple[float, ...]] = {}
        for at in range(4, len(directory) - 3, 4):
            key, place, count, value = directory[at : at + 4]
            if place == 0:
                values[key] = value
            elif place == GEO_DOUBLE_PARAMS and value + count <= len(doubles):
                values[key] = doubles[value : value + count]
            elif place == GEO_ASCII_PARAMS and value + count <= len(text):
                values[key] = text[value : value + count].decode("utf-8", "replace").rstrip("\0").removesuffix("|")
        return cls(values)

    @property
    def pixel_is_point(self) -> bool:
        """Whether coordinates belong to the centres of pixels."""
        return self.values.get(RASTER_TYPE) == PIXEL_IS_POINT

    @property
    def crs(self) -> str | None:
        """The horizontal coordinate system as "EPSG:n", or as WKT where the keys spell it out; None if neither.

        What is not known here GDAL is asked for, where rasterio is installed.
        """
        known = self._known
        if known is not None or not self.system:
            return known
        return system_by_gdal(GeoKeys(told_to_gdal(self.values)).to_tags())

    @property
    def system(self) -> Keys:
        """The keys that tell a coordinate system, without the raster type; none where they tell no system."""
        told = any(self.values.get(key, 0) != 0 for key in _TELLING)
        return {key: value for key, value in self.values.items() if key != RASTER_TYPE} if told else {}

    def to_tags(self) -> tuple[GeoTag, ...]:
        """The tags that hold the keys."""
        entries: list[int] = []
        doubles: list[float] = []
        text = ""
        for key, value in sorted(self.values.items()):
            if isinstance(value, int):
                entries += (key, 0, 1, value)
            elif isinstance(value, str):
                entries += (key, GEO_ASCII_PARAMS, len(value.encode()) + 1, len(text.encode()))
                text += f"{value}|"
            else:
                entries += (key, GEO_DOUBLE_PARAMS, len(value), len(doubles))
                doubles += value
        tags = [GeoTag.shorts(GEO_KEY_DIRECTORY, [1, 1, 0, len(self.values), *entries])]
        tags += [GeoTag.doubles(GEO_DOUBLE_PARAMS, doubles)] * bool(doubles)
        tags += [GeoTag.text(GEO_ASCII_PARAMS, text)] * bool(text)
        return tuple(tags)

    @property
    def _known(self) -> str | None:
        """The system as far as it is known here."""
        projected, geodetic = self.values.get(PROJECTED_CRS), self.values.get(GEODETIC_CRS)
        model = self.values.get(MODEL_TYPE, PROJECTED if projected is not None else GEOGRAPHIC)
        code = geodetic if model in (GEOGRAPHIC, GEOCENTRIC) else projected
        height = self.values.get(VERTICAL)
        if model == GEOGRAPHIC and isinstance(height, int) and crs_kind(height) == "geographic":
            code = height  # GDAL's way to write a system with ellipsoidal heights, as EPSG:4979
        if isinstance(code, int) and 0 < code < USER_DEFINED:
            return f"EPSG:{code}" if model != PROJECTED or self._has_unit_of(code) else None
        citation = self.values.get(PROJECTED_CITATION)
        if isinstance(citation, str) and _WKT_MARK in citation:
            return citation.partition(_WKT_MARK)[2].strip() or None
        if model == GEOGRAPHIC:
            return geographic_from_keys(self.values) if geodetic == USER_DEFINED else None
        return wkt_from_keys(self.values) if model == PROJECTED else None

    def _has_unit_of(self, code: int) -> bool:
        """Whether x and y are in the unit of an EPSG code: the key of the unit stands above it."""
        unit = linear_unit(self.values)
        return unit is None or math.isclose(unit, metres_of(code), rel_tol=_SAME_UNIT)


def key_tags(crs: str | None, *, pixel_is_point: bool) -> tuple[GeoTag, ...]:
    """The tags that say a coordinate system and the raster type; none where there is nothing to say.

    Args:
        crs: "EPSG:n", or the WKT of a projected system, or WKT 1 of a geographic one.
        pixel_is_point: whether coordinates belong to the centres of pixels.

    Raises:
        InputError: the system cannot be written to a GeoTIFF.

    """
    if crs is None and not pixel_is_point:
        return ()
    keys: dict[int, int | str | tuple[float, ...]] = {RASTER_TYPE: PIXEL_IS_POINT if pixel_is_point else PIXEL_IS_AREA}
    code = epsg_code(crs) if crs is not None else None
    if code is not None:
        kind = _writable_kind(code)
        keys |= {MODEL_TYPE: _MODELS[kind], PROJECTED_CRS if kind == "projected" else GEODETIC_CRS: code}
    elif crs is not None:
        keys |= geographic_keys(crs) or {
            MODEL_TYPE: USER_DEFINED,
            PROJECTED_CRS: USER_DEFINED,
            PROJECTED_CITATION: _wkt_citation(crs),
        }
    return GeoKeys(keys).to_tags()


def epsg_code(crs: str) -> int | None:
    """The number of "EPSG:n", also of a WKT whose last authority is EPSG; None for any other text."""
    named = re.fullmatch(r"\s*EPSG:(\d+)\s*", crs, re.IGNORECASE)
    closing = re.search(r'(?:AUTHORITY\["EPSG","|ID\["EPSG",)(\d+)"?\]\s*\]\s*$', crs)
    match = named or closing
    return int(match[1]) if match else None


def _writable_kind(code: int) -> str:
    kind = crs_kind(code)
    if kind not in _MODELS:
        raise InputError(
            f"EPSG:{code} cannot place a raster: it is no projected, geographic or geocentric coordinate system;"
            " give the horizontal one, as with gdal_translate -a_srs EPSG:n in.vrt out.tif"
        )
    return kind


def _wkt_citation(wkt: str) -> str:
    text = " ".join(wkt.split())
    if not text.startswith(("PROJCS[", "PROJCRS[")) or "|" in text:
        raise InputError(
            f'the coordinate system {text[:60]!r} cannot be written to a GeoTIFF; give "EPSG:n" or the WKT of a'
            " projected or geographic one; an input, as NetCDF or VRT, is reprojected first, as with gdalwarp -t_srs"
            " EPSG:4326 in.nc in.tif"
        )
    if len(text.encode()) > _LONGEST_WKT:
        raise InputError(
            f"the WKT of the crs takes {len(text.encode())} bytes, readers of GeoTIFF take {_LONGEST_WKT};"
            " give WKT 1 or EPSG:n"
        )
    return f"{_WKT_MARK}{text}"
