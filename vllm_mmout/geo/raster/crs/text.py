"""The one way of a text to PROJ.

A text that comes with a request or in a file is a stranger's. ``+init=/path:name`` and ``+nadgrids=/path`` make PROJ
open that path, be it a pipe that never answers, and so do parts of WKT and of PROJJSON. Whatever is told in a text goes
through `checked_text`, which lets through what names no file, by lists of what is known to be harmless.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rasterio import Env
from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.session import DummySession

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.syntax import RefusedError, check_wkt, checked_proj_string, checked_projjson, shown

_LONGEST = 2**15
"""Characters; WKT of systems in use has a third of that."""
REMEDY = 'give "EPSG:n", the code of another authority, or WKT'
_AUTHORITY = r"(EPSG|ESRI|IAU_\d{4}|IGNF|NKG|NRCAN|OGC|PROJ)"
_CODE = r"([A-Za-z0-9_.-]{1,32})"
_NAMES = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"{_AUTHORITY}:{_CODE}(?:\+(?:{_AUTHORITY}:)?{_CODE})?",  # with a vertical system too
        rf"urn:(?:x-)?ogc:def:crs:{_AUTHORITY}:[\w.-]*:{_CODE}",
        rf"urn:ogc:def:crs,crs:{_AUTHORITY}:[\w.-]*:{_CODE},crs:{_AUTHORITY}:[\w.-]*:{_CODE}",
        rf"https?://(?:www\.)?opengis\.net/def/crs/{_AUTHORITY}/[\w.-]+/{_CODE}",
        r"()([0-9]{1,10})",
    )
)
"""Codes of the authorities in PROJ's database. For any other name GDAL looks for a file that is called so."""
_WELL_KNOWN = {"WGS84": "EPSG:4326", "NAD27": "EPSG:4267", "NAD83": "EPSG:4269"}
_WKT = re.compile(r"[A-Za-z_]+\s*\[", re.ASCII)
"""How WKT begins."""


def proj_crs(text: str) -> Any:
    """The coordinate system that a text tells: pyproj's ``CRS``."""
    harmless = checked_text(text)
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return CRS.from_user_input(harmless)
    except CRSError as error:
        raise InputError(f"PROJ does not know {shown(text)} ({str(error)[-200:]}); {REMEDY}") from error


def checked_text(text: str) -> str:
    """The text as PROJ may see it: "AUTHORITY:CODE[+CODE of heights]", WKT, PROJJSON, or a PROJ string with a "+"."""
    if len(text) > _LONGEST:
        raise InputError(f"a coordinate system in {len(text)} characters is too long, {_LONGEST} at most; {REMEDY}")
    text = text.strip()
    code = _code(text)
    if code is not None:
        return code
    try:
        if text.startswith("{"):
            return checked_projjson(text)
        if _WKT.match(text):
            check_wkt(text)
            return text
        return checked_proj_string(text)
    except RefusedError as error:
        raise InputError(f"{shown(text)} is refused as a coordinate system: {error}; {REMEDY}") from None


def _code(text: str) -> str | None:
    """The code that a name stands for; None where it is none that is known to be one."""
    found = next((match for name in _NAMES if (match := name.fullmatch(text)) is not None), None)
    if found is None:
        return _WELL_KNOWN.get(text.upper().replace(" ", ""))
    authority, code, other, heights = (*found.groups(""), "", "")[:4]
    own, other = (authority or "EPSG").upper(), other.upper()
    vertical = f"+{other}:{heights}" if other not in ("", own) else f"+{heights}" if heights else ""
    return f"{own}:{code}{vertical}"


@lru_cache(maxsize=64)
def rasterio_crs(text: str) -> CRS:
    """The coordinate system of a code, a URN or address of OGC, WKT, PROJJSON, or a PROJ string that names no file."""
    harmless = checked_text(text)
    wkt = harmless[0] != "{" and "[" in harmless
    read = CRS.from_proj4 if harmless[0] == "+" else CRS.from_wkt if wkt else CRS.from_user_input
    try:
        with Env(session=DummySession()):  # without one GDAL writes its errors to stderr
            return read(harmless)
    except CRSError as error:
        raise InputError(f"PROJ does not know {shown(text)} ({str(error)[-200:]}); {REMEDY}") from error


_SHOWN = 60
"""Characters of a text that a message shows at once."""
_PART = re.compile(r"[A-Za-z_]\w*\[")
"""How a part of WKT begins."""


def same_system(one: str | None, other: str | None) -> bool:
    """Whether two texts tell one system, x before y, as PROJ compares them; None is no system, and like no other."""
    if one is None or other is None or one == other:
        return one == other
    try:
        return bool(rasterio_crs(one) == rasterio_crs(other))
    except InputError:
        return False


def shown_beside(one: str, other: str) -> str:
    """A system as a message shows it beside another: its beginning, and the part where the two begin to differ."""
    one, other = (re.sub(r"\s+", " ", text) for text in (one, other))
    same = next((at for at, letters in enumerate(zip(one, other, strict=False)) if letters[0] != letters[1]), 0)
    if same < _SHOWN // 2:
        return one[:_SHOWN]
    start = max((part.start() for part in _PART.finditer(one, 0, same)), default=0)
    start = max(start, same - _SHOWN * 3 // 4)  # of long names only so much that the difference is seen
    return f"{one[: min(start, _SHOWN)]}...{one[start : start + _SHOWN]}"
