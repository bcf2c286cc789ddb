"""A static STAC catalogue of small random scenes: Sentinel-2 in STAC 1.0 and HLS in STAC 1.1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rasterio.transform import Affine
from synthetic_catalogue import BANDS, Grid, Product, write_bands, write_catalogue, write_item

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


def _grid(tile):
    x, y = PLACE[tile]
    return Grid(f"EPSG:{CRS[tile]}", Affine(30, 0, x, 0, -30, y), SIZE)


def write_band(path, array, tile, **profile):
    """Write one band without nodata, scale and date, so that only the item states them."""
    write_bands(path, array[np.newaxis], _grid(tile), **profile)


def item(folder, tile, day, *, version="1.0.0"):
    """Write the files of one item and return the item as a dict with relative addresses."""
    is_hls = version != "1.0.0"
    name = f"HLS.S30.{tile}.{day}" if is_hls else f"S2A_{tile}_{day}"
    product = Product("hls" if is_hls else "sentinel-2", "sentinel-2a", version, BANDS)
    return write_item(folder, name, product, grid=_grid(tile), day=day, array=pixels(tile, day))


def catalogue(folder):
    """Write a catalogue with a collection of Sentinel-2 and one of HLS; return the path of ``catalog.json``."""
    folder = Path(folder)
    items = {
        name: [item(folder / name, tile, day, version=version) for tile in tiles for day in DAYS]
        for name, tiles, version in (("sentinel-2", sorted(CRS), "1.0.0"), ("hls", ["32TQM"], "1.1.0"))
    }
    (folder / "sentinel-2" / BROKEN / "B04.tif").write_bytes(b"<html>not found</html>")
    return write_catalogue(folder, items)


def item_path(root, collection, name):
    """Return the path of an item in the catalogue."""
    return Path(root).parent / collection / name / f"{name}.json"


def accepted(path):
    """Return whether stac-validator accepts a document, with the schemas of STAC 1.1 that pystac has on disk."""
    validation = pytest.importorskip("pystac.validation")
    validator = pytest.importorskip("stac_validator.stac_validator")
    folder = Path(validation.__file__).parent / "jsonschemas"
    schemas = {json.loads(file.read_text())["$id"].rstrip("#"): str(file) for file in folder.rglob("*.json")}
    common = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/common.json"
    schemas[common] = schemas.get(common, schemas.get(common.replace(".json", "json")))  # its own id lacks the dot
    run = validator.StacValidate(str(path), core=True, schema_map=schemas)
    return run.run() or pytest.fail(str(run.message))
