"""Check that PROJ strings, WKT and PROJJSON name no file that PROJ would open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

_PARAMETERS = """
proj datum ellps a b rf f es e R R_A R_C R_V R_a R_g R_h R_lat_a R_lat_g units to_meter vunits vto_meter pm axis zone
south type no_defs wktext over towgs84 nadgrids lat_0 lon_0 lat_1 lat_2 lat_3 lat_ts lat_b lat_t lon_1 lon_2 lon_3 lonc
alpha gamma x_0 y_0 z_0 k k_0 h h_0 sweep azi tilt theta no_rot no_off no_uoff no_cut rot_xy guam ns hyperbolic czech
approx algo geoc m n q W M s lsat path o_proj o_lat_p o_lon_p o_alpha o_lon_c o_lat_c o_lon_1 o_lat_1 o_lon_2 o_lat_2
north_square south_square orient aperture resolution mode sym shape
"""
_KEYS = frozenset(_PARAMETERS.split())
"""PROJ parameters that are accepted, such as projections, ellipsoids and units. Parameters that may name a file (init,
grids, geoidgrids, file, model, step) are left out."""
_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_SHIFTS = re.compile(r"[0-9eE.+-]{1,32}(,[0-9eE.+-]{1,32}){0,6}")
_NO_GRID = "@null"
"""PROJ's built-in empty grid, which needs no file. The PROJ string of EPSG:3857 contains it."""
_PROJ_LIKE = re.compile(r"(proj|init|title|\w*grids?|file|model|step)[\s+]*=", re.IGNORECASE)
"""Pattern of texts that PROJ may read as a PROJ string, such as "init=epsg:4326". Spaces and "+" before the "=" also
match, because pyproj removes them."""
_METHOD = re.compile(r"PROJ (\w+(?: o_proj=\w+)?)", re.ASCII)
"""Pattern of the name that PROJ gives to a projection without an EPSG code, such as "PROJ ob_tran o_proj=longlat"."""
_REMARK = "PROJ CRS string: "
"""Prefix of a WKT remark that quotes the PROJ string from which a coordinate system was made. PROJ writes such
remarks."""


class CrsTextError(ValueError):
    """Error for the text of a coordinate system that is invalid or may make PROJ open a file."""


def shown(text: str) -> str:
    """Return a text in quotes for an error message, cut to 60 characters."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def checked_proj_string(text: str) -> str:
    """Return a PROJ string in the form "+key=value ...", or raise CrsTextError if a parameter is not allowed."""
    parameters: list[str] = []
    for word in text.split() if "=" in text else ():
        key, equals, value = word.removeprefix("+").partition("=")
        _check_key(key)
        if equals and not _is_harmless(key, value):
            raise CrsTextError(f"its {key} is {shown(value)}")
        parameters.append(f"+{key}{equals}{value}")
    if not any(parameter.startswith("+proj=") for parameter in parameters):
        raise CrsTextError("it is neither a code nor WKT nor a PROJ string")
    return " ".join(parameters)


def check_words(texts: Iterable[str]) -> None:
    """Raise CrsTextError if one of ``texts`` looks like a PROJ string but is not an allowed PROJ string.

    The texts are names and remarks in a WKT or PROJJSON, for example.
    """
    for text in texts:
        if _PROJ_LIKE.search(text):
            checked_proj_string(text.removeprefix(_REMARK))


def check_methods(methods: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise CrsTextError if the name of a projection or of its parameter could make PROJ open a file."""
    of_proj = False
    for method in methods:
        match = _METHOD.fullmatch(method)
        if match is None and (method.upper().startswith("PROJ") or _PROJ_LIKE.search(method)):
            raise CrsTextError(f"its projection is {shown(method)}")
        if match is not None:
            of_proj = True
            checked_proj_string(f"proj={match[1]}")
    for parameter in parameters:
        if of_proj:
            _check_key(parameter)


def _check_key(key: str) -> None:
    if key not in _KEYS:
        raise CrsTextError(f"{shown(key)} is not an allowed parameter of a PROJ string")


def _is_harmless(key: str, value: str) -> bool:
    if key == "nadgrids":
        return value == _NO_GRID
    if key == "towgs84":
        return _SHIFTS.fullmatch(value) is not None
    return _VALUE.fullmatch(value) is not None and (key, value) != ("proj", "pipeline")


_DEEPEST = 24
"""Largest accepted depth of nested brackets in WKT or PROJJSON. PROJ accepts 16."""
_WKT_SYSTEMS = """
PROJCS GEOGCS GEOCCS LOCAL_CS COMPD_CS VERT_CS VERTCS PROJCRS PROJECTEDCRS GEOGCRS GEOGRAPHICCRS GEODCRS GEODETICCRS
VERTCRS VERTICALCRS COMPOUNDCRS ENGCRS ENGINEERINGCRS DERIVEDPROJCRS
"""
_WKT_PARTS = """
DATUM VERT_DATUM VDATUM LOCAL_DATUM SPHEROID PRIMEM UNIT LINUNIT TOWGS84 PROJECTION PARAMETER AXIS AUTHORITY EXTENSION
BASEGEOGCRS BASEGEODCRS BASEPROJCRS BASEVERTCRS BASEENGCRS CONVERSION DERIVINGCONVERSION METHOD GEODETICDATUM TRF
VERTICALDATUM VRF EDATUM ENGINEERINGDATUM ENSEMBLE MEMBER ENSEMBLEACCURACY DYNAMIC FRAMEEPOCH MODEL VELOCITYGRID
GEOIDMODEL ELLIPSOID PRIMEMERIDIAN CS ORDER MERIDIAN AXISMINVALUE AXISMAXVALUE RANGEMEANING BEARING LENGTHUNIT ANGLEUNIT
SCALEUNIT TIMEUNIT PARAMETRICUNIT TEMPORALQUANTITY ID CITATION URI USAGE SCOPE AREA BBOX VERTICALEXTENT TIMEEXTENT
REMARK ANCHOR ANCHOREPOCH VERSION
"""
_ROOTS = frozenset(_WKT_SYSTEMS.split())
_KEYWORDS = _ROOTS | frozenset(_WKT_PARTS.split())
"""WKT keywords that are accepted. BOUNDCRS, PARAMETERFILE and coordinate operations are refused, since they can make
PROJ open a file."""
_TOKEN = re.compile(
    r'\s*(?:"(?P<text>(?:[^"]|"")*)"|(?P<open>[A-Za-z_][A-Za-z_0-9]*)\s*\[|(?P<word>[A-Za-z_][A-Za-z_0-9]*)'
    r"|(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<mark>[\],]))\s*",
    re.ASCII,
)


def check_wkt(text: str) -> None:
    """Raise CrsTextError if a WKT is malformed or any part of it may name a file."""
    methods, parameters = [], []
    nodes = _nodes(text)
    if nodes[0][0] not in _ROOTS:  # pyproj might read it as a PROJ string
        raise CrsTextError(f"it is not the WKT of a coordinate system: it begins with {shown(nodes[0][0])}")
    for keyword, words in nodes:
        if keyword not in _KEYWORDS:
            raise CrsTextError(f"{shown(keyword)} is not an allowed part of WKT")
        if keyword == "EXTENSION":
            if len(words) != 2 or words[0] != "PROJ4":
                raise CrsTextError(f"its extension is {shown(' '.join(words))}")
            checked_proj_string(words[1])
        elif keyword in ("METHOD", "PROJECTION"):
            methods += words
        else:
            parameters += words if keyword == "PARAMETER" else []
            check_words(words)
    check_methods(methods, parameters)


def _nodes(text: str) -> list[tuple[str, list[str]]]:
    """Return each node of a WKT as (keyword in capitals, list of the quoted texts directly inside the node)."""
    nodes: list[tuple[str, list[str]]] = []
    within: list[tuple[str, list[str]]] = []
    at, full = 0, False  # full: a value was read, so a comma or bracket must follow
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or full != (token["mark"] is not None) or len(within) > _DEEPEST:
            raise CrsTextError(f"it is not valid WKT from {shown(text[at:])} on")
        if not within and token["open"] is None and token["mark"] != ",":  # Esri joins two systems with a comma
            raise CrsTextError(f"it is not valid WKT from {shown(text[at:])} on")
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
        raise CrsTextError("it is WKT that ends too early")
    return nodes


_CRS = """
GeographicCRS GeodeticCRS ProjectedCRS CompoundCRS VerticalCRS EngineeringCRS DerivedGeographicCRS DerivedGeodeticCRS
DerivedProjectedCRS
"""
_JSON_PARTS = """
GeodeticReferenceFrame DynamicGeodeticReferenceFrame VerticalReferenceFrame DynamicVerticalReferenceFrame DatumEnsemble
EngineeringDatum Ellipsoid PrimeMeridian CoordinateSystem Axis Conversion OperationMethod ParameterValue Unit LinearUnit
AngularUnit ScaleUnit TimeUnit
"""
_JSON_SYSTEMS = frozenset(_CRS.split())
_TYPES = _JSON_SYSTEMS | frozenset(_JSON_PARTS.split())
"""PROJJSON types that are accepted. BoundCRS and coordinate operations are refused, since they can make PROJ open a
file."""
_REFUSED_KEYS = frozenset({"source_crs", "target_crs", "transformation", "steps", "proj", "init"})
"""PROJJSON keys that are refused: keys of BoundCRS and coordinate operations, and keys that pyproj turns into a PROJ
string."""


def checked_projjson(text: str) -> str:
    """Check that PROJJSON is valid and cannot make PROJ open a file, and return it without duplicate keys.

    Raise CrsTextError if the check fails.
    """
    try:
        system = json.loads(text, parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        raise CrsTextError(f"it is not valid JSON ({str(error)[:60]})") from None
    if not isinstance(system, dict) or not _is_one(system.get("type"), _JSON_SYSTEMS):
        raise CrsTextError("it is not the PROJJSON of a system without grids")
    methods, parameters = [], []
    for part in _nested_objects(system):
        if _REFUSED_KEYS & part.keys() or not _is_one(part.get("type", "Unit"), _TYPES):
            raise CrsTextError(
                f"{shown(str(part.get('type')))} is not an allowed part, or has a member that is not allowed"
            )
        check_words(value for value in part.values() if isinstance(value, str))
        methods += [str(method.get("name")) for method in _objects_in(part.get("method"))]
        for parameter in _objects_in(part.get("parameters")):
            if not isinstance(parameter.get("value"), int | float):
                raise CrsTextError("a parameter of its projection is not a number")
            parameters.append(str(parameter.get("name")))
    check_methods(methods, parameters)
    return json.dumps(system)


def _nested_objects(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a JSON object and all objects nested in it, except below the key "method", which `check_methods` checks."""
    waiting: list[tuple[Any, int]] = [(whole, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise CrsTextError("its parts are nested too deeply")
        if isinstance(value, dict):
            yield value
            waiting += [(inner, depth + 1) for key, inner in value.items() if key != "method"]
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value]
            check_words(inner for inner in value if isinstance(inner, str))


def _objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a JSON list, or a list of one if ``value`` is a single object."""
    values = value if isinstance(value, list) else [value]
    return [table for table in values if isinstance(table, dict)]


def _is_one(value: Any, names: frozenset[str]) -> bool:
    return isinstance(value, str) and value in names


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
