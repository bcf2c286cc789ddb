"""PROJ strings, and the words of other forms that PROJ reads as such."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PARAMETERS = """
proj datum ellps a b rf f es e R R_A R_C R_V R_a R_g R_h R_lat_a R_lat_g units to_meter vunits vto_meter pm axis zone
south type no_defs wktext over towgs84 nadgrids lat_0 lon_0 lat_1 lat_2 lat_3 lat_ts lat_b lat_t lon_1 lon_2 lon_3 lonc
alpha gamma x_0 y_0 z_0 k k_0 h h_0 sweep azi tilt theta no_rot no_off no_uoff no_cut rot_xy guam ns hyperbolic czech
approx algo geoc m n q W M s lsat path o_proj o_lat_p o_lon_p o_alpha o_lon_c o_lat_c o_lon_1 o_lat_1 o_lon_2 o_lat_2
north_square south_square orient aperture resolution mode sym shape
"""
_KEYS = frozenset(_PARAMETERS.split())
"""Parameters of projections, ellipsoids and units. init, grids, geoidgrids, file, model and step are none of them."""
_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_SHIFTS = re.compile(r"[0-9eE.+-]{1,32}(,[0-9eE.+-]{1,32}){0,6}")
_NO_GRID = "@null"
"""The grid without a file, which PROJ has built in; EPSG:3857 has it."""
_LIKE = re.compile(r"(proj|init|title|\w*grids?|file|model|step)[\s+]*=", re.IGNORECASE)
"""What tells that PROJ may read words as a PROJ string; pyproj takes a space or "+" before "=" out."""
_METHOD = re.compile(r"PROJ (\w+(?: o_proj=\w+)?)", re.ASCII)
"""How PROJ calls a projection that EPSG has not."""
_REMARK = "PROJ CRS string: "
"""What it writes before the PROJ string that a system was made of."""


class RefusedError(ValueError):
    """A text may make PROJ open a file, or cannot be looked at; the reason is its message."""


def shown(text: str) -> str:
    """A text as a message has it."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def checked_proj_string(text: str) -> str:
    """A PROJ string, of parameters that name no file, in its plain form.

    Raises:
        RefusedError: a parameter is not known to be harmless.

    """
    parameters: list[str] = []
    for word in text.split() if "=" in text else ():
        key, equals, value = word.removeprefix("+").partition("=")
        _check_key(key)
        if equals and not _is_harmless(key, value):
            raise RefusedError(f"its {key} is {shown(value)}")
        parameters.append(f"+{key}{equals}{value}")
    if not any(parameter.startswith("+proj=") for parameter in parameters):
        raise RefusedError("it is no code, no WKT and no PROJ string")
    return " ".join(parameters)


def check_words(words: Iterable[str]) -> None:
    """Check names and remarks within a system: PROJ reads some of them as PROJ strings.

    Raises:
        RefusedError: one is a PROJ string with a parameter that is not known to be harmless.

    """
    for word in words:
        if _LIKE.search(word):
            checked_proj_string(word.removeprefix(_REMARK))


def check_methods(methods: Iterable[str], parameters: Iterable[str]) -> None:
    """Check the names of projections within a system, and of their parameters.

    Raises:
        RefusedError: PROJ would make a PROJ string of them that may name a file.

    """
    own = False
    for method in methods:
        found = _METHOD.fullmatch(method)
        if found is None and (method.upper().startswith("PROJ") or _LIKE.search(method)):
            raise RefusedError(f"its projection is {shown(method)}")
        if found is not None:
            own = True
            checked_proj_string(f"proj={found[1]}")
    for parameter in parameters:
        if own:
            _check_key(parameter)


def _check_key(key: str) -> None:
    if key not in _KEYS:
        raise RefusedError(f"{shown(key)} is no parameter of a PROJ string that may be given here")


def _is_harmless(key: str, value: str) -> bool:
    if key == "nadgrids":
        return value == _NO_GRID
    if key == "towgs84":
        return _SHIFTS.fullmatch(value) is not None
    return _VALUE.fullmatch(value) is not None and (key, value) != ("proj", "pipeline")
