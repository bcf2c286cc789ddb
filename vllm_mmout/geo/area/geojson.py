"""Read an area of interest from GeoJSON, a GeoJSON file or an object with ``__geo_interface__``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo.area.polygons import Area, features_of, wrong
from vllm_mmout.geo.raster.crs.syntax import shown
from vllm_mmout.geo.raster.crs.text import checked_text, rasterio_crs, same_system
from vllm_mmout.geo.raster.formats import in_bucket, is_address

LONGEST_AREA: Final = 8 << 20
"""Largest size of an area's GeoJSON in bytes."""
LON_LAT: Final = "EPSG:4326"
"""Coordinate system of GeoJSON without a member ``crs``. Positions are (longitude, latitude)."""
_FORMS: Final = "GeoJSON (a dict, its text or the path of its file), or a shapely or geopandas object"


def area_text(value: Any, crs: str | None = None) -> str:
    """Check an area of interest, and return it as GeoJSON text.

    The text is the normal form of an area: it can be compared, pickled and sent. If its coordinate system is not that
    of RFC 7946, the member ``crs`` of GeoJSON 2008 names it. ``"crs": null`` means the coordinate system of the input.

    Args:
        value: GeoJSON as a mapping, as text or as the path of a file; or an object with ``__geo_interface__``, whose
            attribute ``crs`` is used if it has one.
        crs: coordinate system of the coordinates, if ``value`` does not state one.

    Raises:
        OptionError: the value is not a valid area, or states another coordinate system than ``crs``.
    """
    if isinstance(value, str | PurePath) and not _is_json(value):
        value = _file_text(str(value))
    text = area_json(_geo_json(value))
    if crs is not None:
        text = _with_crs(text, crs)
    area_of(text)
    return text


def area_json(value: Any) -> str:
    """Return GeoJSON text for an area that is a mapping or already text. A file path is refused.

    This is the form for data from the network. `area_text` checks what the JSON holds.
    """
    if isinstance(value, str):
        if not _is_json(value):
            raise wrong(f"must be a GeoJSON object, got {value[:60]!r}")
        return value
    if not isinstance(value, Mapping):
        raise wrong(f"must be {_FORMS}, got {type(value).__name__}")
    try:
        return msgspec.json.encode(dict(value), enc_hook=_json_value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise wrong(f"is no GeoJSON: {error}") from None


@lru_cache(maxsize=8)
def area_of(text: str) -> Area:
    """Parse the GeoJSON text of an area. Raise OptionError if the text is not a valid area."""
    data = _decoded(text)
    crs = _crs_of_member(data["crs"]) if "crs" in data else LON_LAT
    geographic = crs is not None and _checked_crs(crs, "aoi").is_geographic
    return Area(features_of(data, geographic=geographic), crs)


def _decoded(text: str) -> dict[str, Any]:
    if len(text) > LONGEST_AREA:
        raise wrong(f"has {len(text)} characters, and may have {LONGEST_AREA}; simplify its borders")
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise wrong(f"is no valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise wrong(f"must be a GeoJSON object, got {text[:60]!r}")
    return data


def _is_json(value: str | PurePath) -> bool:
    return isinstance(value, str) and value.lstrip()[:1] in {"{", "["}


def _file_text(path: str) -> str:
    """Return the text of a GeoJSON file on this machine."""
    if in_bucket(path) or is_address(path):
        raise wrong(f"must be a file on this machine, got the address {path[:200]}; download it first")
    try:
        with Path(path).open("rb") as file:
            content = file.read(LONGEST_AREA + 1) if Path(path).is_file() else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise wrong(f"names the file {path[:200]!r}, which cannot be read: {reason}; give {_FORMS}") from None
    if content is None or len(content) > LONGEST_AREA:
        raise wrong(f"names {path[:200]!r}, which is no file of at most {LONGEST_AREA} bytes; simplify its borders")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if not _is_json(text):
        raise wrong(f"names {path[:200]!r}, which is no GeoJSON; in Python give geopandas.read_file({path[:200]!r})")
    return text


def _geo_json(value: Any) -> Any:
    """Convert an object with ``__geo_interface__`` to GeoJSON with a member ``crs``. Return other values unchanged."""
    if isinstance(value, str | Mapping) or not hasattr(value, "__geo_interface__"):
        return value
    geometry = value.__geo_interface__
    if not isinstance(geometry, Mapping):
        raise wrong(f"is a {type(value).__name__} whose __geo_interface__ is no GeoJSON; give {_FORMS}")
    crs = getattr(value, "crs", None)
    return {**geometry, "crs": geometry.get("crs") if crs is None else _crs_member(_crs_text(crs))}


def _crs_text(crs: Any) -> str:
    """Convert a coordinate system, given as text or as pyproj's ``CRS``, to text such as "EPSG:4326" or WKT."""
    if isinstance(crs, str):
        return crs
    code = crs.to_epsg() if hasattr(crs, "to_epsg") else None
    return f"EPSG:{code}" if code is not None else str(crs.to_wkt())


@lru_cache(maxsize=8)
def _with_crs(text: str, crs: str) -> str:
    """Add the coordinate system ``crs`` to an area's GeoJSON text. Raise OptionError if the text names another system.

    A text that already names this system is returned unchanged.
    """
    _checked_crs(crs, "aoi_crs")
    data = _decoded(text)
    if data.get("crs") is None:
        return area_json({**data, "crs": _crs_member(crs)})
    stated = _crs_of_member(data["crs"])
    if not same_system(stated, _canonical(crs)):
        raise OptionError(
            f"aoi_crs is {shown(crs)}, and aoi itself states {shown(str(stated))}; leave aoi_crs out", param="aoi_crs"
        )
    return text


def _crs_member(crs: str) -> dict[str, Any]:
    """Return the value that names a coordinate system in the member ``crs`` of GeoJSON 2008."""
    return {"type": "name", "properties": {"name": crs}}


def _crs_of_member(member: Any) -> str | None:
    """Return the coordinate system that GeoJSON's member ``crs`` names, or None if the member is null."""
    if member is None:
        return None
    properties = member.get("properties") if isinstance(member, dict) else None
    name = properties.get("name") if isinstance(properties, dict) else None
    if not isinstance(name, str) or member.get("type") != "name":
        raise wrong('has a member crs without a name; write {"type": "name", "properties": {"name": "EPSG:n"}}')
    return _canonical(name)


def _canonical(crs: str) -> str:
    """Return the text of a coordinate system in short form. OGC:CRS84 becomes the equivalent EPSG:4326."""
    try:
        text = checked_text(crs)
    except InputError as error:
        raise wrong(f"states a coordinate system that cannot be used: {error}") from None
    return LON_LAT if text == "OGC:CRS84" else text


def _checked_crs(crs: str, option: str) -> Any:
    """Return rasterio's ``CRS`` for the text ``crs``. Raise OptionError if it is neither geographic nor projected.

    The error names the request option ``option``.
    """
    try:
        system = rasterio_crs(crs)
    except InputError as error:
        raise OptionError(f'{option} must name a coordinate system, as "EPSG:4326": {error}', param=option) from None
    if not (system.is_geographic or system.is_projected):
        raise OptionError(
            f'{option} must name a geographic or projected system ("EPSG:4326"), got {shown(crs)}', param=option
        )
    return system


def _json_value(value: Any) -> Any:
    """Convert a value that msgspec cannot encode to plain Python data.

    A mapping becomes a dict, and a NumPy array becomes nested lists. Any other value becomes text.
    """
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)
