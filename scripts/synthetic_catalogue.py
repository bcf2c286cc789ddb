# ruff: noqa: INP001 - the scripts are not a package
"""Write a static STAC catalogue of synthetic Sentinel-2, Landsat and HLS items.

    python scripts/synthetic_catalogue.py FOLDER

All items show a generated river at the border of UTM zones 32 and 33. Clouds are pixels without data, and each date has
its own. The scene of Landsat is turned. One asset is broken. Beside the catalogue are ``area.geojson``, an area of
interest with two features, and three of the scenes as GeoTIFFs of six bands in the folder ``tiles``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine, array_bounds
from rasterio.warp import Resampling, reproject, transform, transform_bounds
from scene_generator.light import add_clouds, reflectance, sense
from scene_generator.scene_map import UNIT, draw_map

BANDS: Final = {"B02": "blue", "B03": "green", "B04": "red", "B8A": "nir08", "B11": "swir16", "B12": "swir22"}
"""Maps names of the bands to their common names."""
_GROUND: Final = "EPSG:32632"
_CENTRE: Final = (736_000.0, 4_991_200.0)
"""Centre of the ground in `_GROUND`, at 12 degrees east."""
_PIXEL: Final = 20.0
_SHAPE: Final = (400, 640)
_CLOUDED: Final = 0.15
"""Opacity of a cloud above which a pixel is nodata."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Grid of an item."""

    crs: str
    transform: Affine
    size: int
    """Number of rows and of columns."""

    @classmethod
    def around(cls, epsg: int, east: float, pixel: float, size: int, turn: float = 0.0) -> Grid:
        """Return a grid around a point ``east`` metres from the centre of the ground, turned by degrees."""
        (x,), (y,) = transform(_GROUND, f"EPSG:{epsg}", [_CENTRE[0] + east], [_CENTRE[1]])
        x, y, half = round(x / pixel) * pixel, round(y / pixel) * pixel, size * pixel / 2
        cos, sin = np.cos(np.radians(turn)), np.sin(np.radians(turn))
        left, top = x - half * (cos + sin), y + half * (cos - sin)
        place = Affine(pixel * cos, pixel * sin, left, pixel * sin, -pixel * cos, top)
        return cls(f"EPSG:{epsg}", place, size)


@dataclass(frozen=True, slots=True)
class Product:
    """A collection: how its files store reflectance, and how its items describe them."""

    collection: str
    platform: str
    version: str
    """Version of STAC: 1.0.0 describes bands in ``eo:bands`` and ``raster:bands``, 1.1.0 in ``bands``."""
    names: Mapping[str, str]
    """Maps names of bands to common names."""
    dtype: str = "uint16"
    scale: float = 0.0001
    offset: float = 0.0
    nodata: int = 0

    def stored(self, values: NDArray[np.floating]) -> NDArray[Any]:
        """Return reflectance as the numbers of the files. NaN is nodata."""
        low = self.nodata + 1
        counts = np.rint((values - self.offset) / self.scale).clip(low, 20_000)
        return np.where(np.isnan(values), self.nodata, counts).astype(self.dtype)


SENTINEL_2: Final = Product("sentinel-2-l2a", "sentinel-2a", "1.0.0", BANDS)
LANDSAT: Final = Product(
    "landsat-c2-l2",
    "landsat-9",
    "1.0.0",
    {f"OLI_B{number}": common for number, common in enumerate(BANDS.values(), start=2)},
    scale=0.0000275,
    offset=-0.2,
)
HLS: Final = Product("hls2-s30", "sentinel-2b", "1.1.0", BANDS, dtype="int16", nodata=-9999)
_WEST: Final = Grid.around(32632, -2600, 20, 300)
_EAST: Final = Grid.around(32633, 2600, 20, 300)
_TURNED: Final = Grid.around(32632, 0, 30, 256, turn=12)
_EAST_30: Final = Grid.around(32633, 2600, 30, 256)
BROKEN: Final = "S2A_33TUK_20240613"
"""Item whose asset ``red`` is an HTML page."""
ITEMS: Final = {
    "S2A_32TQQ_20240524": (SENTINEL_2, _WEST, "2024-05-24"),
    "S2A_33TUK_20240524": (SENTINEL_2, _EAST, "2024-05-24"),
    "S2A_32TQQ_20240603": (SENTINEL_2, _WEST, "2024-06-03"),
    "S2A_33TUK_20240603": (SENTINEL_2, _EAST, "2024-06-03"),
    "LC09_192029_20240608": (LANDSAT, _TURNED, "2024-06-08"),
    "S2A_32TQQ_20240613": (SENTINEL_2, _WEST, "2024-06-13"),
    BROKEN: (SENTINEL_2, _EAST, "2024-06-13"),
    "HLS.S30.T33TUK.2024165": (HLS, _EAST_30, "2024-06-13"),
}
"""The product, grid and day of each item."""
TILES: Final = {
    "west_2024-06-03": "S2A_32TQQ_20240603",
    "east_2024-06-03": "S2A_33TUK_20240603",
    "turned_2024-06-08": "LC09_192029_20240608",
}
"""Maps the names of the GeoTIFFs of six bands to items."""


def ground() -> tuple[NDArray[np.float32], Affine]:
    """Return the reflectance of the ground [6, height, width], and its transform in EPSG:32632."""
    rng = np.random.default_rng(6)
    height, width = _SHAPE
    image = sense(rng, reflectance(rng, draw_map(rng, _SHAPE), _PIXEL))
    left, top = _CENTRE[0] - width / 2 * _PIXEL, _CENTRE[1] + height / 2 * _PIXEL
    return image, Affine(_PIXEL, 0, left, 0, -_PIXEL, top)


def clouded(image: NDArray[np.float32], day: str) -> NDArray[np.float32]:
    """Return the ground on a day, NaN under its clouds."""
    rng = np.random.default_rng(int(day.replace("-", "")))
    shaded, opacity = add_clouds(rng, image, min(_SHAPE) / UNIT)
    return np.where(opacity > _CLOUDED, np.float32(np.nan), shaded)


def on_grid(image: NDArray[np.float32], place: Affine, grid: Grid) -> NDArray[np.float32]:
    """Return an image of the ground on the grid of an item, NaN where the ground ends."""
    target = np.full((len(image), grid.size, grid.size), np.nan, np.float32)
    reproject(
        image,
        target,
        src_transform=place,
        src_crs=_GROUND,
        dst_transform=grid.transform,
        dst_crs=grid.crs,
        src_nodata=np.nan,
        dst_nodata=np.nan,
        resampling=Resampling.nearest,
    )
    return target


def write_bands(path: Path, array: NDArray[Any], grid: Grid, **profile: Any) -> None:
    """Write bands [n, height, width] without nodata, scale and date, so that only the item states them."""
    settings = {"crs": grid.crs, "transform": grid.transform, "compress": "deflate", **profile}
    count, height, width = array.shape
    shape = {"count": count, "height": height, "width": width, "dtype": array.dtype}
    with rasterio.open(path, "w", driver="GTiff", **shape, **settings) as file:
        file.write(array)


def write_item(
    folder: Path, name: str, product: Product, *, grid: Grid, day: str, array: NDArray[Any]
) -> dict[str, Any]:
    """Write the files of an item into its folder, and return the item as a dict with relative addresses."""
    place = folder / name
    place.mkdir(parents=True)
    assets: dict[str, Any] = {}
    for (band, common), pixels in zip(product.names.items(), array, strict=True):
        write_bands(place / f"{band}.tif", pixels[np.newaxis], grid)
        fields = {"href": f"./{band}.tif", "type": "image/tiff; application=geotiff", "roles": ["data"]}
        numbers = {"nodata": product.nodata, "scale": product.scale, "offset": product.offset}
        if product.version == "1.0.0":
            eo = {"eo:bands": [{"name": band, "common_name": common}]}
            assets[common] = {**fields, **eo, "raster:bands": [numbers]}
        else:
            facts = {"name": band, "eo:common_name": common, "nodata": product.nodata, "raster:scale": product.scale}
            assets[band] = {**fields, "bands": [facts]}
    assets["thumbnail"] = {"href": "./none.png", "type": "image/png", "roles": ["thumbnail"]}
    assets["visual"] = {
        "href": "./visual.tif",
        "type": "image/tiff",
        "roles": ["data"],
        "eo:bands": [{"name": band} for band in list(product.names)[2::-1]],
    }
    left, bottom, right, top = transform_bounds(
        grid.crs, "EPSG:4326", *array_bounds(grid.size, grid.size, grid.transform)
    )
    is_old = product.version == "1.0.0"
    code = {"proj:epsg": int(grid.crs.removeprefix("EPSG:"))} if is_old else {"proj:code": grid.crs}
    return {
        "type": "Feature",
        "stac_version": product.version,
        "id": name,
        "collection": product.collection,
        "geometry": _rectangle(left, bottom, right, top),
        "bbox": [left, bottom, right, top],
        "properties": {
            "datetime": f"{day}T10:00:00Z",
            "platform": product.platform,
            **code,
            "proj:shape": [grid.size, grid.size],
            "proj:transform": list(grid.transform),
        },
        "assets": assets,
        "links": [],
    }


def _rectangle(left: float, bottom: float, right: float, top: float) -> dict[str, Any]:
    ring = [[left, bottom], [right, bottom], [right, top], [left, top], [left, bottom]]
    return {"type": "Polygon", "coordinates": [ring]}


def write_catalogue(folder: Path, items: Mapping[str, list[dict[str, Any]]]) -> Path:
    """Write a catalogue of collections, whose items are in the folders of their files; return its path."""
    import pystac

    root = pystac.Catalog("synthetic", "Synthetic scenes")
    extent = pystac.Extent(
        pystac.SpatialExtent([[-180, -90, 180, 90]]),
        pystac.TemporalExtent([[datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC)]]),
    )
    for name, of_collection in items.items():
        collection = pystac.Collection(name, name, extent)
        root.add_child(collection)
        for item in of_collection:
            path = f"{item['id']}/{item['id']}.json"
            (folder / name / path).write_text(json.dumps(item), encoding="utf-8")
            collection.add_link(pystac.Link("item", f"./{path}", "application/geo+json"))
    root.normalize_hrefs(str(folder), skip_unresolved=True)
    root.save(pystac.CatalogType.SELF_CONTAINED)
    return folder / "catalog.json"


def area() -> dict[str, Any]:
    """Return an area of interest as GeoJSON: two features, one on each side of the border of the zones."""
    x, y = _CENTRE
    features = []
    for name, west, east in (("west", -4400, -600), ("east", -600, 4400)):
        corners = [(x + west, y - 2600), (x + east, y - 1800), (x + east - 400, y + 2400), (x + west, y + 2000)]
        longitudes, latitudes = transform(_GROUND, "EPSG:4326", *zip(*corners, corners[0], strict=True))
        ring = [[round(lon, 6), round(lat, 6)] for lon, lat in zip(longitudes, latitudes, strict=True)]
        geometry = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": {"name": name}, "geometry": geometry})
    return {"type": "FeatureCollection", "features": features}


def make_catalogue(folder: str | Path) -> Path:
    """Write the catalogue, ``area.geojson`` and the tiles into a folder, and return the path of ``catalog.json``."""
    folder = Path(folder)
    image, place = ground()
    days = {day: clouded(image, day) for _, _, day in ITEMS.values()}
    items: dict[str, list[dict[str, Any]]] = {}
    for name, (product, grid, day) in ITEMS.items():
        array = product.stored(on_grid(days[day], place, grid))
        made = write_item(folder / product.collection, name, product, grid=grid, day=day, array=array)
        items.setdefault(product.collection, []).append(made)
    (folder / "tiles").mkdir()
    for name, of_item in TILES.items():
        _, grid, day = ITEMS[of_item]
        array = SENTINEL_2.stored(on_grid(days[day], place, grid))
        write_bands(folder / "tiles" / f"{name}.tif", array, grid, nodata=SENTINEL_2.nodata)
    (folder / SENTINEL_2.collection / BROKEN / "B04.tif").write_bytes(b"<html>not found</html>")
    (folder / "area.geojson").write_text(json.dumps(area()), encoding="utf-8")
    return write_catalogue(folder, items)


if __name__ == "__main__":
    make_catalogue(sys.argv[1])
