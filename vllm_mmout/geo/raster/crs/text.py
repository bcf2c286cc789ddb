"""Convert text to coordinate systems. No other module passes such text to PROJ.

A text in a request or a file is not trusted. ``+init=/path:name``, ``+nadgrids=/path`` and some parts of WKT and
PROJJSON make PROJ open a path, which may be a pipe that blocks forever. Therefore every text goes through
`checked_text`, which accepts only parts that are known to name no file.
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
from vllm_mmout.geo.raster.crs.syntax import CrsTextError, check_wkt, checked_proj_string, checked_projjson, shown

_LONGEST = 2**15
"""Largest accepted length, in characters, of a text that defines a coordinate system. Real WKT has less than 11 000
characters."""
REMEDY = 'give "EPSG:n", the code of another authority, or WKT'
_AUTHORITY = r"(EPSG|ESRI|IAU_\d{4}|IGNF|NKG|NRCAN|OGC|PROJ)"
_CODE = r"([A-Za-z0-9_.-]{1,32})"
_NAMES = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"{_AUTHORITY}:{_CODE}(?:\+(?:{_AUTHORITY}:)?{_CODE})?",  # optionally with a vertical system
        rf"urn:(?:x-)?ogc:def:crs:{_AUTHORITY}:[\w.-]*:{_CODE}",
        rf"urn:ogc:def:crs,crs:{_AUTHORITY}:[\w.-]*:{_CODE},crs:{_AUTHORITY}:[\w.-]*:{_CODE}",
        rf"https?://(?:www\.)?opengis\.net/def/crs/{_AUTHORITY}/[\w.-]+/{_CODE}",
        r"()([0-9]{1,10})",
    )
)
"""Patterns of the codes in PROJ's database, such as "EPSG:4326". Other names are refused, since GDAL would look for a
file of that name."""
_WELL_KNOWN = {"WGS84": "EPSG:4326", "NAD27": "EPSG:4267", "NAD83": "EPSG:4269"}
_WKT = re.compile(r"[A-Za-z_]+\s*\[", re.ASCII)
"""Pattern of the beginning of a WKT."""


def proj_crs(text: str) -> Any:
    """Convert the text of a coordinate system to pyproj's ``CRS``, or raise InputError."""
    harmless = checked_text(text)
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return CRS.from_user_input(harmless)
    except CRSError as error:
        raise InputError(f"PROJ does not know {shown(text)} ({str(error)[-200:]}); {REMEDY}") from error


def checked_text(text: str) -> str:
    """Return the text of a coordinate system in a form that is safe for PROJ, or raise InputError.

    The form is "AUTHORITY:CODE[+CODE of the vertical system]", WKT, PROJJSON, or a PROJ string that begins with "+".
    """
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
    except CrsTextError as error:
        raise InputError(f"{shown(text)} is refused as a coordinate system: {error}; {REMEDY}") from None


def _code(text: str) -> str | None:
    """Return the code, such as "EPSG:4326", for a code, URN, URL or well-known name. Return None for any other text.

    The code of a vertical system may follow, as in "EPSG:4326+5773".
    """
    code_match = next((match for name in _NAMES if (match := name.fullmatch(text)) is not None), None)
    if code_match is None:
        return _WELL_KNOWN.get(text.upper().replace(" ", ""))
    authority, code, other, heights = (*code_match.groups(""), "", "")[:4]
    own, other = (authority or "EPSG").upper(), other.upper()
    vertical = f"+{other}:{heights}" if other not in ("", own) else f"+{heights}" if heights else ""
    return f"{own}:{code}{vertical}"


@lru_cache(maxsize=64)
def rasterio_crs(text: str) -> CRS:
    """Convert the text of a coordinate system to rasterio's ``CRS``, or raise InputError.

    The text is a code, an OGC URN or address, WKT, PROJJSON, or a PROJ string that names no file.
    """
    harmless = checked_text(text)
    wkt = harmless[0] != "{" and "[" in harmless
    read = CRS.from_proj4 if harmless[0] == "+" else CRS.from_wkt if wkt else CRS.from_user_input
    try:
        with Env(session=DummySession()):  # without an Env GDAL writes its errors to stderr
            return read(harmless)
    except CRSError as error:
        raise InputError(f"PROJ does not know {shown(text)} ({str(error)[-200:]}); {REMEDY}") from error


_SHOWN = 60
"""Length, in characters, of each excerpt of a long text that an error message shows."""
_PART = re.compile(r"[A-Za-z_]\w*\[")
"""Pattern of the beginning of a WKT node, such as ``DATUM[``."""


def same_system(one: str | None, other: str | None) -> bool:
    """Return whether two texts define the same coordinate system. The order of the axes is ignored.

    None is equal only to None. A text that is refused is equal only to itself.
    """
    if one is None or other is None or one == other:
        return one == other
    try:
        return bool(rasterio_crs(one) == rasterio_crs(other))
    except InputError:
        return False


def shown_beside(one: str, other: str) -> str:
    """Shorten the text ``one`` so that a message can show it beside ``other``. Keep the part where the texts differ.

    Both texts define coordinate systems. The result is the beginning of ``one``, followed by the part where the texts
    begin to differ.
    """
    one, other = (re.sub(r"\s+", " ", text) for text in (one, other))
    common = next((at for at, letters in enumerate(zip(one, other, strict=False)) if letters[0] != letters[1]), 0)
    if common < _SHOWN // 2:
        return one[:_SHOWN]
    start = max((part.start() for part in _PART.finditer(one, 0, common)), default=0)
    start = max(start, common - _SHOWN * 3 // 4)  # a long name is cut so that the difference is visible
    return f"{one[: min(start, _SHOWN)]}...{one[start : start + _SHOWN]}"
