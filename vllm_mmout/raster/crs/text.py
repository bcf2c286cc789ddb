"""The one way of a text to PROJ.

A text that comes with a request or in a file is a stranger's. ``+init=/path:name`` and ``+nadgrids=/path`` make PROJ
open that path, be it a pipe that never answers, and so do parts of WKT and of PROJJSON. Whatever is told in a text goes
through `proj_crs`, which lets through what names no file, by lists of what is known to be harmless.
"""

from __future__ import annotations

import re
from typing import Any

from vllm_mmout.errors import InputError
from vllm_mmout.raster.crs.proj_string import RefusedError, checked_proj_string, shown
from vllm_mmout.raster.crs.projjson import checked_projjson
from vllm_mmout.raster.crs.wkt import check_wkt

_LONGEST = 2**15
"""Characters; WKT of systems in use has a third of that."""
_REMEDY = 'give "EPSG:n", the code of another authority, or WKT'
_CODE = r"[A-Za-z]\w{0,31}:[A-Za-z0-9_.-]{1,32}"
_NAMES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"{_CODE}(\+({_CODE}|\w{{1,32}}))?",  # with a vertical system too
        r"[0-9]{1,10}",
        r"urn:(x-)?ogc:def:crs:\w+:[\w.-]*:[\w.-]+",
        r"urn:ogc:def:crs(,crs:\w+:[\w.-]*:[\w.-]+){2}",
        r"https?://(www\.)?opengis\.net/def/crs/\w+/[\w.-]+/[\w.-]+",
        r"(?i:WGS ?84|NAD ?27|NAD ?83)",
    )
)
"""What PROJ finds in its database at once. For other names it looks at all that are like them, which takes seconds."""
_WKT = re.compile(r"[A-Za-z_]+\s*\[", re.ASCII)
"""How WKT begins."""


def proj_crs(text: str) -> Any:
    """The coordinate system that a text tells: pyproj's ``CRS``.

    Args:
        text: a code ("EPSG:n", or of another authority), a URN or address of OGC, WKT, PROJJSON, or a PROJ
            string of parameters that name no file.

    Raises:
        InputError: PROJ does not know the text, or the text may make it open a file.
        ImportError: pyproj is not installed.

    """
    harmless = checked_text(text)
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return CRS.from_user_input(harmless)
    except CRSError as error:
        raise InputError(f"PROJ does not know {shown(text)} ({str(error)[-200:]}); {_REMEDY}") from error


def checked_text(text: str) -> str:
    """The text as PROJ may see it.

    Args:
        text: as of `proj_crs`.

    Returns:
        The same system, in the one way of writing it that was looked at.

    Raises:
        InputError: the text is of none of these forms, too long, or may make PROJ open a file.

    """
    if len(text) > _LONGEST:
        raise InputError(f"a coordinate system in {len(text)} characters is too long, {_LONGEST} at most; {_REMEDY}")
    text = text.strip()
    if any(name.fullmatch(text) for name in _NAMES):
        return text
    try:
        if text.startswith("{"):
            return checked_projjson(text)
        if _WKT.match(text):
            check_wkt(text)
            return text
        return checked_proj_string(text)
    except RefusedError as error:
        raise InputError(f"{shown(text)} is refused as a coordinate system: {error}; {_REMEDY}") from None
