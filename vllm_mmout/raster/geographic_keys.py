"""Keys of a GeoTIFF for geographic systems without an EPSG code, as grids of weather models have them.

Key numbers: OGC 19-008, annex D. The citation names the parts of the system as Esri's software and GDAL do it.
"""

from __future__ import annotations

import math
import re

_MODEL_TYPE, _GEODETIC_CRS, _CITATION, _DATUM = 1024, 2048, 2049, 2050
_ANGULAR_UNIT, _ELLIPSOID, _SEMI_MAJOR, _SEMI_MINOR, _INVERSE_FLATTENING = 2054, 2056, 2057, 2058, 2059
_PRIME_MERIDIAN, _TO_WGS84 = 2061, 2062
_GEOGRAPHIC, _DEGREE, _USER_DEFINED = 2, 9102, 32767

_NAME = r'\["([^"|]+)"'
_CODE = r'(?:,AUTHORITY\["EPSG","(\d+)"\])?'
_GEOGCS = re.compile(
    rf"GEOGCS{_NAME},DATUM{_NAME},SPHEROID{_NAME},([^,\]]+),([^,\]]+){_CODE}\](?:,TOWGS84\[([^\]]+)\])?{_CODE}\]"
    rf",PRIMEM{_NAME},([^,\]]+){_CODE}\],UNIT{_NAME},([^,\]]+){_CODE}\](?:,AXIS{_NAME},\w+\]){{0,2}}\]"
)
"""WKT 1 of a geographic system of two axes; GDAL's has no other parts where there is no code."""


def geographic_keys(wkt: str) -> dict[int, int | str | tuple[float, ...]] | None:
    """The keys of a geographic system.

    Args:
        wkt: WKT 1 of a system in degrees.

    Returns:
        The keys; None for any other text.

    """
    found = _GEOGCS.fullmatch(re.sub(r"\s*([,\[\]])\s*", r"\1", wkt.strip()))
    if found is None:
        return None
    name, datum, ellipsoid, _, _, ellipsoid_code, _, datum_code, meridian, *_ = found.groups()
    major, inverse, shift, longitude, unit = (_numbers(found[place]) for place in (4, 5, 7, 10, 13))
    if not (major and inverse and longitude and unit) or not math.isclose(unit[0], math.radians(1), rel_tol=1e-9):
        return None
    keys: dict[int, int | str | tuple[float, ...]] = {
        _MODEL_TYPE: _GEOGRAPHIC,
        _GEODETIC_CRS: _USER_DEFINED,
        _CITATION: f"GCS Name = {name}|Datum = {datum}|Ellipsoid = {ellipsoid}|Primem = {meridian}",
        _DATUM: int(datum_code or _USER_DEFINED),
        _ANGULAR_UNIT: _DEGREE,
        _ELLIPSOID: int(ellipsoid_code or _USER_DEFINED),
        _SEMI_MAJOR: major,
        **({_INVERSE_FLATTENING: inverse} if inverse[0] else {_SEMI_MINOR: major}),
        _PRIME_MERIDIAN: longitude,
    }
    return {**keys, _TO_WGS84: shift} if shift else keys


def _numbers(text: str | None) -> tuple[float, ...]:
    """The numbers of a list; none where one is malformed."""
    try:
        return tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError:
        return ()
