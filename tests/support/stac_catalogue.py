"""A static STAC catalogue of synthetic scenes: Sentinel-2 in STAC 1.0 and HLS in STAC 1.1, written by rasterio."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import Affine

BANDS = {"B02": "blue", "B03": "green", "B04": "red", "B8A": "nir08", "B11": "swir16", "B12": "swir22"}
SIZE = 48
DAYS = ("2024-06-01", "2024-06-11", "2024-06-21")
CRS = {"32TQM": 32632, "33TUL": 32633}
PLACE = {"32TQM": (699960, 5300040), "33TUL": (244320, 5300040)}
"""Upper left corner of each tile, which overlap at the border of the zones."""
BROKEN = "S2A_33TUL_2024-06-21"
"""Item whose asset B04 is no raster."""


def pixels(tile, day):
    """Return the pixels uint16 [6, 48, 48] of an item."""
    seed = sorted(CRS).index(tile) * 10 + DAYS.index(day)
    array = np.random.default_rng(seed).integers(1, 3000, (6, SIZE, SIZE)).astype(np.uint16)
    array[:, :3, :5] = 0
    return array


def write_band(path, array, tile, **profile):
    """Write one band without nodata, scale and date, so that only the item states them."""
    x, y = PLACE[tile]
    place = {"crs": f"EPSG:{CRS[tile]}", "transform": Affine(30, 0, x, 0, -30, y), **profile}
    with rasterio.open(path, "w", driver="GTiff", count=1, height=SIZE, width=SIZE, dtype=array.dtype, **place) as file:
        file.write(array, 1)


def item(folder, tile, day, *, version="1.0.0"):
    """Write the files of one item and return the item as a dict with relative addresses."""
    hls = version != "1.0.0"
    name = f"HLS.S30.{tile}.{day}" if hls else f"S2A_{tile}_{day}"
    place = folder / name
    place.mkdir(parents=True)
    assets = {}
    for (band, common), array in zip(BANDS.items(), pixels(tile, day), strict=True):
        write_band(place / f"{band}.tif", array, tile)
        fields = {"href": f"./{band}.tif", "type": "image/tiff; application=geotiff", "roles": ["data"]}
        if hls:
            facts = {"name": band, "eo:common_name": common, "nodata": 0, "raster:scale": 0.0001}
            assets[band] = {**fields, "bands": [facts]}
        else:
            bands = {"eo:bands": [{"name": band, "common_name": common}]}
            assets[common] = {**fields, **bands, "raster:bands": [{"nodata": 0, "scale": 0.0001, "offset": 0}]}
    assets["thumbnail"] = {"href": "./none.png", "type": "image/png", "roles": ["thumbnail"]}
    assets["visual"] = {
        "href": "./visual.tif",
        "type": "image/tiff",
        "roles": ["data"],
        "eo:bands": [{"name": name} for name in ("B04", "B03", "B02")],
    }
    code = {"proj:code": f"EPSG:{CRS[tile]}"} if hls else {"proj:epsg": CRS[tile]}
    x, y = PLACE[tile]
    grid = {"proj:shape": [SIZE, SIZE], "proj:transform": [30, 0, x, 0, -30, y, 0, 0, 1]}
    left, bottom, right, top = rasterio.warp.transform_bounds(
        f"EPSG:{CRS[tile]}", "EPSG:4326", x, y - SIZE * 30, x + SIZE * 30, y
    )
    ring = [[left, bottom], [right, bottom], [right, top], [left, top], [left, bottom]]
    return {
        "type": "Feature",
        "stac_version": version,
        "id": name,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [left, bottom, right, top],
        "properties": {"datetime": f"{day}T10:00:00Z", "platform": "sentinel-2a", "cloud": 5, **code, **grid},
        "assets": assets,
        "links": [],
    }


def catalogue(folder):
    """Write a catalogue with a collection of Sentinel-2 and one of HLS; return the path of ``catalog.json``."""
    import pystac

    folder = Path(folder)
    root = pystac.Catalog("synthetic", "Synthetic scenes")
    extent = pystac.Extent(
        pystac.SpatialExtent([[-180, -90, 180, 90]]),
        pystac.TemporalExtent([[datetime(2024, 6, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC)]]),
    )
    for name, tiles, version in (("sentinel-2", sorted(CRS), "1.0.0"), ("hls", ["32TQM"], "1.1.0")):
        collection = pystac.Collection(name, name, extent)
        root.add_child(collection)
        place = folder / name
        links = []
        for tile in tiles:
            for day in DAYS:
                made = item(place, tile, day, version=version)
                made["collection"] = name
                (place / made["id"] / f"{made['id']}.json").write_text(json.dumps(made))
                links.append(pystac.Link("item", f"./{made['id']}/{made['id']}.json", "application/geo+json"))
        collection.add_links(links)
    (folder / "sentinel-2" / BROKEN / "B04.tif").write_bytes(b"<html>not found</html>")
    root.normalize_hrefs(str(folder), skip_unresolved=True)
    root.save(pystac.CatalogType.SELF_CONTAINED)
    return folder / "catalog.json"


def item_path(root, collection, name):
    """Return the path of an item in the catalogue."""
    return Path(root).parent / collection / name / f"{name}.json"
