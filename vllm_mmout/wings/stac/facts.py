"""Read the metadata for a result's STAC item from its GeoTIFF: dates, footprint, bands and classes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vllm_mmout.geo import DATES, DESCRIBED_BY, date_of_raster
from vllm_mmout.outputs.rendering import render

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from rasterio.io import DatasetReader

_THUMBNAIL: Final = 512
"""Maximum width and height of a thumbnail, in pixels."""
_PIECE: Final = 1 << 20
_SHA_256: Final = "1220"
"""Prefix of a SHA-256 hash in the multihash format, in hexadecimal. The first byte means SHA-256. The second byte is
the length of the hash."""
_STATISTICS: Final = {
    "minimum": "STATISTICS_MINIMUM",
    "maximum": "STATISTICS_MAXIMUM",
    "mean": "STATISTICS_MEAN",
    "stddev": "STATISTICS_STDDEV",
    "valid_percent": "STATISTICS_VALID_PERCENT",
}
_DECIMAL_PLACES: Final = 7
"""Number of decimal places of longitudes and latitudes, which gives a precision of about 1 cm."""
_TURN: Final = 360.0
_POINTS_PER_SIDE: Final = 16
"""Number of points on each side of a footprint. A straight side may be a curve in longitude and latitude."""


class ResultFacts:
    """Metadata for the STAC item of a result, read from the result's GeoTIFF.

    Args:
        path: path of the file.
        dataset: the open file.
        name: name of the result, which may contain its date. None: the name of the file.

    """

    def __init__(self, path: Path, dataset: DatasetReader, name: str | None = None) -> None:
        self.path = path
        self._name = path.name if name is None else name
        self._dataset = dataset
        self.tags: Mapping[str, str] = dataset.tags()
        """Metadata tags of the GeoTIFF."""

    @property
    def origins(self) -> list[str]:
        """Addresses of the STAC items from which the input was read."""
        return [line for line in self.tags.get(DESCRIBED_BY, "").split("\n") if line]

    @cached_property
    def acquisition_times(self) -> tuple[datetime, datetime, bool]:
        """First acquisition time, last acquisition time, and a bool that is True if the times are known.

        If the bool is False, both times are the file's modification time.
        """
        try:
            known = sorted(_utc(text) for text in self.tags.get(DATES, "").split("\n") if text)
        except ValueError:
            known = []
        if known:
            return known[0], known[-1], True
        day = date_of_raster(self.tags, self._name)
        if day is not None:
            first = datetime(day.year, day.month, day.day, tzinfo=UTC)
            return first, first.replace(hour=23, minute=59, second=59), True
        written = datetime.fromtimestamp(int(self.path.stat().st_mtime), UTC)
        return written, written, False

    @cached_property
    def footprint(self) -> dict[str, Any] | None:
        """GeoJSON geometry of the raster's border in longitude and latitude, cut at the antimeridian.

        None without a georeference, or if a corner has no place in longitude and latitude, as on another planet.
        """
        from rasterio._err import CPLE_BaseError
        from rasterio.warp import transform_geom

        data = self._dataset
        if data.crs is None or data.transform.is_identity:
            return None
        ring = self._map_coordinates(_outline(data.width, data.height))
        polygon = {"type": "Polygon", "coordinates": [ring]}
        try:
            shape: dict[str, Any] = transform_geom(
                data.crs, "EPSG:4326", polygon, antimeridian_cutting=True, precision=_DECIMAL_PLACES
            )
        except CPLE_BaseError:
            return None
        if not all(math.isfinite(number) for point in _points(shape) for number in point):
            return None
        if data.crs.is_geographic and shape["type"] == "Polygon":  # GDAL cuts after projections alone
            shape = _cut_at_antimeridian(shape["coordinates"][0])
        return {"type": shape["type"], "coordinates": _as_lists(shape["coordinates"])}

    @property
    def box(self) -> list[float] | None:
        """Bounding box (west, south, east, north) of the footprint in degrees. None if the footprint is unknown.

        West exceeds east if the box crosses the antimeridian.
        """
        shape = self.footprint
        if shape is None:
            return None
        points = list(_points(shape))
        across = shape["type"] == "MultiPolygon"
        wests = [point[0] for point in points if not across or point[0] > 0]
        easts = [point[0] for point in points if not across or point[0] < 0]
        north_south = [point[1] for point in points]
        return [min(wests), min(north_south), max(easts), max(north_south)]

    @property
    def projection(self) -> dict[str, Any]:
        """Fields of the STAC extension "projection", such as "proj:code" and "proj:shape"."""
        data = self._dataset
        fields: dict[str, Any] = {"proj:shape": [data.height, data.width]}
        if data.crs is None:
            return {"proj:code": None, **fields}
        code = data.crs.to_epsg()
        fields |= {"proj:code": f"EPSG:{code}"} if code else {"proj:code": None, "proj:wkt2": data.crs.to_wkt()}
        if data.transform.is_identity:
            return fields
        ring = self._map_coordinates(_outline(data.width, data.height, 1))
        return {
            **fields,
            "proj:transform": list(data.transform),
            "proj:bbox": [*map(min, zip(*ring, strict=True)), *map(max, zip(*ring, strict=True))],
            "proj:geometry": {"type": "Polygon", "coordinates": [[list(point) for point in ring]]},
        }

    def _map_coordinates(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """Convert points from (column, row) to map coordinates."""
        a, b, c, d, e, f = tuple(self._dataset.transform)[:6]
        return [(a * col + b * row + c, d * col + e * row + f) for col, row in points]

    @property
    def bands(self) -> list[dict[str, Any]]:
        """Band descriptions as in STAC 1.1, with fields of the STAC extension "raster"."""
        return [self._band(number) for number in self._dataset.indexes]

    def _band(self, number: int) -> dict[str, Any]:
        data = self._dataset
        tags, nodata = data.tags(number), data.nodatavals[number - 1]
        band: dict[str, Any] = {
            "name": data.descriptions[number - 1] or f"band_{number}",
            "data_type": data.dtypes[number - 1],
        }
        if nodata is not None:
            band["nodata"] = "nan" if math.isnan(nodata) else _as_json_number(nodata)
        if unit := data.units[number - 1]:
            band["unit"] = unit
        statistics = {name: _as_json_number(float(tags[tag])) for name, tag in _STATISTICS.items() if tag in tags}
        if all(math.isfinite(value) for value in statistics.values()) and statistics:
            band["statistics"] = statistics
        if data.crs is not None and data.crs.is_projected and data.crs.linear_units_factor[1] == 1:
            band["raster:spatial_resolution"] = _as_json_number(math.hypot(data.transform.a, data.transform.d))
        return band

    @cached_property
    def _colours(self) -> dict[int, tuple[int, ...]]:
        """Colour table of the GeoTIFF as a dict from pixel value to (red, green, blue, alpha).

        The dict is empty if the GeoTIFF has no colour table.
        """
        from rasterio.enums import ColorInterp

        data = self._dataset
        return data.colormap(1) if data.colorinterp[0] == ColorInterp.palette else {}

    @property
    def classes(self) -> list[dict[str, Any]]:
        """Class descriptions of the STAC extension "classification", or an empty list if classes are not named."""
        colours = self._colours
        names = {
            key: text for key, text in self._dataset.tags(1).items() if key.startswith("CLASS_") and key[6:].isdecimal()
        }
        classes = []
        for key, title in sorted(names.items(), key=lambda item: int(item[0][6:])):
            value = int(key[6:])
            name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in title)
            one: dict[str, Any] = {"value": value, "name": name or f"class_{value}", "title": title}
            if value in colours:
                one["color_hint"] = "".join(f"{part:02X}" for part in colours[value][:3])
            classes.append(one)
        return classes

    def thumbnail(self) -> Image:
        """Return a picture of the result, at most 512 pixels wide and high.

        Pixel values with an entry in the GeoTIFF's colour table are shown in their colours.
        """
        data = self._dataset
        longer = max(data.height, data.width, _THUMBNAIL)
        size = [max(1, round(side * _THUMBNAIL / longer)) for side in (data.height, data.width)]
        bands = [1, 2, 3] if data.count == 3 else [1]
        array = data.read(bands, out_shape=(len(bands), *size))  # by GDAL's overviews, with the nearest pixel
        valid = np.logical_and.reduce(data.read_masks(bands, out_shape=array.shape) != 0)
        palette = np.zeros((256, 3), np.uint8)
        for value, colour in self._colours.items():
            palette[value] = colour[:3]
        return render(array, None if valid.all() else valid, palette if self._colours else None)


def checksum(path: Path) -> str:
    """Return the SHA-256 hash of a file in the multihash format, as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return _SHA_256 + digest.hexdigest()


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _outline(width: int, height: int, steps: int = _POINTS_PER_SIDE) -> list[tuple[float, float]]:
    """Return points along a raster's border as (column, row). The first and the last point are the same corner."""
    corners = [(0, 0), (0, height), (width, height), (width, 0), (0, 0)]
    ring = [
        (a[0] + (b[0] - a[0]) * step / steps, a[1] + (b[1] - a[1]) * step / steps)
        for a, b in pairwise(corners)
        for step in range(steps)
    ]
    return [*ring, (0.0, 0.0)]


def _cut_at_antimeridian(ring: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Convert a convex ring of longitudes and latitudes to a GeoJSON geometry, cut in two at the antimeridian."""
    lons: NDArray[np.float64] = np.asarray(np.unwrap([point[0] for point in ring], period=_TURN), np.float64)
    lons -= _TURN * math.floor((lons.min() + _TURN / 2) / _TURN)
    lats = np.array([point[1] for point in ring])
    if np.ptp(lons) >= _TURN:
        west, east = -_TURN / 2, _TURN / 2
        south, north = float(lats.min()), float(lats.max())
        whole = [(west, north), (west, south), (east, south), (east, north), (west, north)]
        return {"type": "Polygon", "coordinates": [whole]}
    if lons.max() <= _TURN / 2:
        return {"type": "Polygon", "coordinates": [_rounded(lons, lats)]}
    parts = [_half(lons, lats, sign) for sign in (-1, 1)]
    (west_lons, west_lats), (east_lons, east_lats) = parts
    rings = [_rounded(west_lons, west_lats), _rounded(east_lons - _TURN, east_lats)]
    return {"type": "MultiPolygon", "coordinates": [[each] for each in rings]}


def _half(lons: NDArray[np.float64], lats: NDArray[np.float64], sign: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the points of a closed ring on one side of the antimeridian: west if ``sign`` is -1, east if 1."""
    kept: list[tuple[float, float]] = []
    beyond = sign * (lons - _TURN / 2)
    for place in range(len(lons) - 1):
        one, other = beyond[place], beyond[place + 1]
        if one >= 0:
            kept.append((lons[place], lats[place]))
        if one * other < 0:
            kept.append((_TURN / 2, lats[place] + (lats[place + 1] - lats[place]) * one / (one - other)))
    x, y = np.array([*kept, kept[0]]).T
    return x, y


def _rounded(lons: NDArray[np.float64], lats: NDArray[np.float64]) -> list[tuple[float, float]]:
    points = np.round(np.stack([lons, lats], axis=1), _DECIMAL_PLACES).tolist()
    return [(lon, lat) for lon, lat in points]


def _points(shape: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    parts = shape["coordinates"] if shape["type"] == "MultiPolygon" else [shape["coordinates"]]
    for polygon in parts:
        for ring in polygon:
            yield from ring


def _as_lists(value: Any) -> Any:
    return [_as_lists(part) for part in value] if isinstance(value, list | tuple) else value


def _as_json_number(number: float) -> float:
    """Return a number as int if it is whole, so that JSON shows it without a decimal point."""
    return int(number) if float(number).is_integer() else float(number)
