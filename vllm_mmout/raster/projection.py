"""WKT for coordinate systems that a GeoTIFF spells out key by key instead of naming an EPSG code.

Key numbers: OGC 19-008, annex D. Names of methods and parameters: OGC 01-009 (WKT 1), as GDAL writes them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.raster.crs_units import metres_of_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    Keys: TypeAlias = Mapping[int, int | str | tuple[float, ...]]

_USER_DEFINED = 32767
_CITATION, _GEODETIC_CRS, _GEODETIC_CITATION, _DATUM, _ELLIPSOID = 1026, 2048, 2049, 2050, 2056
_SEMI_MAJOR, _SEMI_MINOR, _INVERSE_FLATTENING, _PRIME_MERIDIAN = 2057, 2058, 2059, 2061
_PROJECTION, _METHOD, _LINEAR_UNIT, _LINEAR_UNIT_SIZE, _ANGULAR_UNIT = 3074, 3075, 3076, 3077, 2054
_TO_WGS84 = 2062
_NAMES_A_DATUM = re.compile(r"Datum = (?!unknown|unnamed|not.specified)", re.IGNORECASE)
"""What a citation has, as Esri's software and GDAL write it, that names a datum."""

_LATITUDE, _LONGITUDE, _SCALE = (3081, 3085, 3089), (3080, 3084, 3088), (3092, 3093)
_FALSE = (("false_easting", (3082, 3090, 3086)), ("false_northing", (3083, 3091, 3087)))
_PARALLELS = (("standard_parallel_1", (3078,)), ("standard_parallel_2", (3079,)))
_METHODS: dict[int, tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]] = {
    1: (
        "Transverse_Mercator",
        (("latitude_of_origin", _LATITUDE), ("central_meridian", _LONGITUDE), ("scale_factor", _SCALE), *_FALSE),
    ),
    7: ("Mercator_1SP", (("central_meridian", _LONGITUDE), ("scale_factor", (3092,)), *_FALSE)),
    8: (
        "Lambert_Conformal_Conic_2SP",
        (("latitude_of_origin", _LATITUDE), ("central_meridian", _LONGITUDE), *_PARALLELS, *_FALSE),
    ),
    10: (
        "Lambert_Azimuthal_Equal_Area",
        (("latitude_of_center", _LATITUDE), ("longitude_of_center", _LONGITUDE), *_FALSE),
    ),
    11: (
        "Albers_Conic_Equal_Area",
        (("latitude_of_center", _LATITUDE), ("longitude_of_center", _LONGITUDE), *_PARALLELS, *_FALSE),
    ),
    24: ("Sinusoidal", (("longitude_of_center", _LONGITUDE), *_FALSE)),
}
"""GeoTIFF's number of a method -> its name, and each parameter with the keys that may hold it, in GDAL's order."""
_MERCATOR = 7

_DATUMS = {6326: "WGS_1984", 6269: "North_American_Datum_1983", 6258: "European_Terrestrial_Reference_System_1989"}
_SYSTEMS = {4326: ("WGS 84", 6326), 4269: ("NAD83", 6269), 4258: ("ETRS89", 6258)}
_NO_SYSTEM = frozenset({_USER_DEFINED, *range(4001, 4036)})
_NO_DATUM = frozenset({_USER_DEFINED, *range(6001, 6036)})
"""Numbers that tell no datum: EPSG's are "not specified (based on the ellipsoid ...)"."""
_ELLIPSOIDS = {
    7030: ("WGS 84", 6378137.0, 298.257223563),
    7019: ("GRS 1980", 6378137.0, 298.257222101),
}
_DATUM_ELLIPSOID = {6326: 7030, 6269: 7019, 6258: 7019}


def wkt_from_keys(keys: Keys) -> str | None:
    """The projected system that the keys spell out: "EPSG:n" for a UTM zone, else WKT 1; None if it is not known here.

    Known are metres, degrees from Greenwich, the methods of `_METHODS`, and what `geographic_from_keys` knows.
    """
    if linear_unit(keys) not in (None, 1.0):
        return None
    zone = _utm_zone(keys)
    code = _utm_code(keys, zone)
    if code is not None:
        return f"EPSG:{code}"
    if zone:
        keys = {**keys, **_utm_keys(zone)}
    geogcs = _geogcs(keys)
    method = _METHODS.get(_integer(keys, _METHOD))
    if method is None or geogcs is None:
        return None
    if method is _METHODS[_MERCATOR] and (_first(keys, (3078,)) is not None or _first(keys, (3081,))):
        return None  # the scale is true elsewhere than along the equator
    name, parameters = method
    values = [(parameter, _first(keys, places)) for parameter, places in parameters]
    if any(value is None for parameter, value in values if not parameter.startswith("false_")):
        return None
    listed = "".join(f'PARAMETER["{parameter}",{value or 0.0!r}],' for parameter, value in values)
    title = _title(keys, _CITATION)
    return f'PROJCS["{title}",{geogcs},PROJECTION["{name}"],{listed}UNIT["metre",1,AUTHORITY["EPSG","9001"]]]'


def linear_unit(keys: Keys) -> float | None:
    """The unit of x and y that the keys tell, in metres; None if they tell none, NaN if it is not known here."""
    return metres_of_unit(_integer(keys, _LINEAR_UNIT, 0), _first(keys, (_LINEAR_UNIT_SIZE,)))


def _utm_zone(keys: Keys) -> int:
    """The UTM zone of a projection that is given by number, negative in the south; 0 if it is none."""
    south, zone = divmod(_integer(keys, _PROJECTION) - 16000, 100)
    if south not in (0, 1) or not 1 <= zone <= 60:
        return 0
    return -zone if south else zone


def _utm_code(keys: Keys, zone: int) -> int | None:
    """The EPSG code of a UTM zone on WGS 84 or NAD83."""
    datum = _datum(keys)
    if datum == 6326 and zone:
        return 32600 + zone if zone > 0 else 32700 - zone
    return 26900 + zone if datum == 6269 and 1 <= zone <= 23 else None


def _utm_keys(zone: int) -> Keys:
    """The transverse Mercator projection that a UTM zone is."""
    return {
        _METHOD: 1,
        3081: (0.0,),
        3080: (abs(zone) * 6.0 - 183.0,),
        3092: (0.9996,),
        3082: (500000.0,),
        3083: (10000000.0 if zone < 0 else 0.0,),
    }


def geographic_from_keys(keys: Keys) -> str | None:
    """The geographic system that the keys spell out: "EPSG:n" where the datum tells it, else WKT 1; None if not known.

    Known are degrees from Greenwich, the datums of `_DATUMS`, and ellipsoids without one: what is on any other datum
    lies some 100 m beside the place that its ellipsoid alone tells.
    """
    wkt, datum = _geogcs(keys), _datum(keys)
    codes = [code for code, (_, of) in _SYSTEMS.items() if of == datum]
    return f"EPSG:{codes[0]}" if codes and wkt is not None else wkt


def _geogcs(keys: Keys) -> str | None:
    """The GEOGCS that the keys spell out, or that a projection stands on."""
    if _integer(keys, _ANGULAR_UNIT, 9102) != 9102 or _first(keys, (_PRIME_MERIDIAN,)) not in (None, 0.0):
        return None
    datum = _datum(keys)
    ellipsoid = _ELLIPSOIDS.get(_DATUM_ELLIPSOID.get(datum, _integer(keys, _ELLIPSOID)))
    major, inverse = _first(keys, (_SEMI_MAJOR,)), _first(keys, (_INVERSE_FLATTENING,))
    minor = _first(keys, (_SEMI_MINOR,))
    if ellipsoid is None and major is not None:
        if inverse is None and minor is not None:
            inverse = 0.0 if minor == major else major / (major - minor)
        ellipsoid = None if inverse is None else ("unknown", major, inverse)
    if ellipsoid is None or not _is_known(keys, datum):
        return None
    name, _ = _SYSTEMS.get(_integer(keys, _GEODETIC_CRS), ("unknown", 0))
    authority = f',AUTHORITY["EPSG","{datum}"]' if datum in _DATUMS else ""
    spheroid = f'SPHEROID["{ellipsoid[0]}",{ellipsoid[1]!r},{ellipsoid[2]!r}]'
    return (
        f'GEOGCS["{name}",DATUM["{_DATUMS.get(datum, "unknown")}",{spheroid}{authority}],'
        'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]'
    )


def _is_known(keys: Keys, datum: int) -> bool:
    """Whether the datum is one of `_DATUMS`, or the keys tell an ellipsoid alone."""
    if _integer(keys, _GEODETIC_CRS) in _SYSTEMS:
        return True
    if _TO_WGS84 in keys:
        return False
    citation = keys.get(_GEODETIC_CITATION)
    named = isinstance(citation, str) and _NAMES_A_DATUM.search(citation)
    return datum in _DATUMS or (datum in _NO_DATUM and not named)


def _datum(keys: Keys) -> int:
    """EPSG's number of the datum; 32767 where the keys tell none, 0 where they tell it by a system not known here."""
    number = _integer(keys, _GEODETIC_CRS)
    if number in _SYSTEMS:
        return _SYSTEMS[number][1]
    return _integer(keys, _DATUM) if number in _NO_SYSTEM else 0


def _integer(keys: Keys, key: int, default: int = _USER_DEFINED) -> int:
    value = keys.get(key, default)
    return value if isinstance(value, int) else default


def _first(keys: Keys, places: tuple[int, ...]) -> float | None:
    """The number under the first of some keys that is there."""
    for place in places:
        value = keys.get(place)
        if isinstance(value, tuple) and value:
            return value[0]
    return None


def _title(keys: Keys, key: int) -> str:
    value = keys.get(key)
    return value.replace('"', "'") if isinstance(value, str) and value else "unknown"
