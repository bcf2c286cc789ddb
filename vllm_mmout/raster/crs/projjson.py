"""PROJJSON: coordinate systems as PROJ writes them in JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vllm_mmout.raster.crs.proj_string import RefusedError, check_methods, check_words, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_CRS = """
GeographicCRS GeodeticCRS ProjectedCRS CompoundCRS VerticalCRS EngineeringCRS DerivedGeographicCRS DerivedGeodeticCRS
DerivedProjectedCRS
"""
_PARTS = """
GeodeticReferenceFrame DynamicGeodeticReferenceFrame VerticalReferenceFrame DynamicVerticalReferenceFrame DatumEnsemble
EngineeringDatum Ellipsoid PrimeMeridian CoordinateSystem Axis Conversion OperationMethod ParameterValue Unit LinearUnit
AngularUnit ScaleUnit TimeUnit
"""
_SYSTEMS = frozenset(_CRS.split())
_TYPES = _SYSTEMS | frozenset(_PARTS.split())
"""Parts that name no file. BoundCRS and coordinate operations may."""
_OTHERS = frozenset({"source_crs", "target_crs", "transformation", "steps", "proj", "init"})
"""Members that only those have, and those of which pyproj makes a PROJ string."""
_DEEPEST = 24


def checked_projjson(text: str) -> str:
    """PROJJSON whose parts name no file, written anew: parsers differ in what they take of a key that stands twice.

    Raises:
        RefusedError: a part may name a file, or it is no PROJJSON.

    """
    try:
        found = json.loads(text, parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"it is no JSON ({str(error)[:60]})") from None
    if not isinstance(found, dict) or not _is_one(found.get("type"), _SYSTEMS):
        raise RefusedError("it is no PROJJSON of a system without grids")
    methods, parameters = [], []
    for part in _parts(found):
        if _OTHERS & part.keys() or not _is_one(part.get("type", "Unit"), _TYPES):
            raise RefusedError(
                f"{shown(str(part.get('type')))} is no part that may be given here, or has one that is not"
            )
        check_words(value for value in part.values() if isinstance(value, str))
        methods += [str(method.get("name")) for method in _tables(part.get("method"))]
        for parameter in _tables(part.get("parameters")):
            if not isinstance(parameter.get("value"), int | float):
                raise RefusedError("a parameter of its projection is no number")
            parameters.append(str(parameter.get("name")))
    check_methods(methods, parameters)
    return json.dumps(found)


def _parts(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All tables within one, and itself, but the names of methods, which are looked at in another way."""
    waiting: list[tuple[Any, int]] = [(whole, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise RefusedError("its parts lie too deep in each other")
        if isinstance(value, dict):
            yield value
            waiting += [(inner, depth + 1) for key, inner in value.items() if key != "method"]
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value]
            check_words(inner for inner in value if isinstance(inner, str))


def _tables(value: Any) -> list[dict[str, Any]]:
    """A table, or those of a list."""
    values = value if isinstance(value, list) else [value]
    return [table for table in values if isinstance(table, dict)]


def _is_one(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, str) and value in known


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
