"""WKT of both versions (OGC 01-009, ISO 19162) and Esri's, as a list of its parts."""

from __future__ import annotations

import re

from vllm_mmout.raster.crs.proj_string import RefusedError, check_methods, check_words, checked_proj_string, shown

_DEEPEST = 24
"""Levels of brackets; PROJ takes 16."""
_SYSTEMS = """
PROJCS GEOGCS GEOCCS LOCAL_CS COMPD_CS VERT_CS VERTCS PROJCRS PROJECTEDCRS GEOGCRS GEOGRAPHICCRS GEODCRS GEODETICCRS
VERTCRS VERTICALCRS COMPOUNDCRS ENGCRS ENGINEERINGCRS DERIVEDPROJCRS
"""
_PARTS = """
DATUM VERT_DATUM VDATUM LOCAL_DATUM SPHEROID PRIMEM UNIT LINUNIT TOWGS84 PROJECTION PARAMETER AXIS AUTHORITY EXTENSION
BASEGEOGCRS BASEGEODCRS BASEPROJCRS BASEVERTCRS BASEENGCRS CONVERSION DERIVINGCONVERSION METHOD GEODETICDATUM TRF
VERTICALDATUM VRF EDATUM ENGINEERINGDATUM ENSEMBLE MEMBER ENSEMBLEACCURACY DYNAMIC FRAMEEPOCH MODEL VELOCITYGRID
GEOIDMODEL ELLIPSOID PRIMEMERIDIAN CS ORDER MERIDIAN AXISMINVALUE AXISMAXVALUE RANGEMEANING BEARING LENGTHUNIT ANGLEUNIT
SCALEUNIT TIMEUNIT PARAMETRICUNIT TEMPORALQUANTITY ID CITATION URI USAGE SCOPE AREA BBOX VERTICALEXTENT TIMEEXTENT
REMARK ANCHOR ANCHOREPOCH VERSION
"""
_ROOTS = frozenset(_SYSTEMS.split())
_KEYWORDS = _ROOTS | frozenset(_PARTS.split())
"""Parts that name no file. BOUNDCRS, PARAMETERFILE and coordinate operations may."""
_TOKEN = re.compile(
    r'\s*(?:"(?P<text>(?:[^"]|"")*)"|(?P<open>[A-Za-z_][A-Za-z_0-9]*)\s*\[|(?P<word>[A-Za-z_][A-Za-z_0-9]*)'
    r"|(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<mark>[\],]))\s*",
    re.ASCII,
)


def check_wkt(text: str) -> None:
    """Look at each part of WKT.

    Raises:
        RefusedError: a part may name a file, or is none of WKT's.

    """
    methods, parameters = [], []
    nodes = _nodes(text)
    if nodes[0][0] not in _ROOTS:  # else pyproj may take it for a PROJ string
        raise RefusedError(f"it is no WKT of a system: it begins with {shown(nodes[0][0])}")
    for keyword, words in nodes:
        if keyword not in _KEYWORDS:
            raise RefusedError(f"{shown(keyword)} is no part of WKT that may be given here")
        if keyword == "EXTENSION":
            if len(words) != 2 or words[0] != "PROJ4":
                raise RefusedError(f"its extension is {shown(' '.join(words))}")
            checked_proj_string(words[1])
        elif keyword in ("METHOD", "PROJECTION"):
            methods += words
        else:
            parameters += words if keyword == "PARAMETER" else []
            check_words(words)
    check_methods(methods, parameters)


def _nodes(text: str) -> list[tuple[str, list[str]]]:
    """The keywords, in capitals, each with the texts that stand right within it."""
    nodes: list[tuple[str, list[str]]] = []
    within: list[tuple[str, list[str]]] = []
    at, full = 0, False  # full: a value is there, so that a comma or bracket must follow
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or full != (token["mark"] is not None) or len(within) > _DEEPEST:
            raise RefusedError(f"it is no WKT from {shown(text[at:])} on")
        if not within and token["open"] is None and token["mark"] != ",":  # Esri writes two systems with a comma
            raise RefusedError(f"it is no WKT from {shown(text[at:])} on")
        at = token.end()
        if token["open"] is not None:
            nodes.append((token["open"].upper(), []))
            within.append(nodes[-1])
        elif token["text"] is not None:
            within[-1][1].append(token["text"].replace('""', '"'))
        elif token["mark"] == "]":
            within.pop()
        full = token["open"] is None and token["mark"] != ","
    if within or not full:
        raise RefusedError("it is WKT without its end")
    return nodes
