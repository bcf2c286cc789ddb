"""Coordinate systems of GDAL's in the words that rasters have here."""

from __future__ import annotations

import re
from typing import Any

from vllm_mmout.raster.epsg import FIRST, LAST, crs_kind

_COMPOUND = ("COMPD_CS[", "COMPOUNDCRS[")
_SHIFT = "TOWGS84["
_DATUM = re.compile(
    r'SPHEROID\[[^\[\]]*(?:\[[^\]]*\])?\],AUTHORITY\["EPSG"|'
    r'DATUM\["(?:D_)?(?:WGS_1984|North_American_(?:Datum_)?1983|ETRS_1989|European_Terrestrial_Reference_System_1989)"'
)
"""A datum that has a code, or a name that tells it."""
_MARKS = re.compile(r'"(?:[^"]|"")*"|[\[\],]')


def crs_text(crs: Any) -> str | None:
    """The horizontal part of a coordinate system of rasterio's, as "EPSG:n" or as WKT where no code is known."""
    if not crs:
        return None
    wkt: str = crs.to_wkt()
    code = crs.to_epsg()
    if code is not None and _is_of(code, wkt):
        return f"EPSG:{code}"
    if wkt.startswith(_COMPOUND):
        return crs_text(type(crs).from_wkt(_first_system(wkt)))
    return wkt


def _is_of(code: int, wkt: str) -> bool:
    """Whether a code that PROJ found is that of a system which places a raster.

    PROJ also finds codes of systems that are alike but for a datum that is unknown, some 100 m beside it.
    """
    if not FIRST <= code <= LAST or crs_kind(code) == "other":
        return False
    named = wkt.endswith((f'AUTHORITY["EPSG","{code}"]]', f'ID["EPSG",{code}]]'))
    return named or (_SHIFT not in wkt and _DATUM.search(wkt) is not None)


def _first_system(wkt: str) -> str:
    """The first system within a compound one: what stands between the first comma outside of brackets and the next."""
    commas: list[int] = []
    depth = 0
    for mark in _MARKS.finditer(wkt):
        depth += {"[": 1, "]": -1}.get(mark[0], 0)
        if mark[0] == "," and depth == 1:
            commas.append(mark.start())
    return wkt[commas[0] + 1 : commas[1]]
