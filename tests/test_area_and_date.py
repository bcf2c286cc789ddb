"""An area and a month in, one catalogued map out: a search, mosaic, area of interest, several results and a figure.

The oracle is rasterio with numpy: the hand-made mosaic reads each item's bands, applies the model's formula, and puts
the classes onto the grid of the map.
"""

from __future__ import annotations

import csv
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import water_oracle
from stac_catalogue import accepted
from synthetic_catalogue import BROKEN, ITEMS, TILES, area, make_catalogue

from vllm_mmout.cli import main

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytest.importorskip("pystac")
pytest.importorskip("shapely", reason="the search of a static catalogue by an area needs it")
pytest.importorskip("matplotlib")
from rasterio.features import geometry_mask  # noqa: E402 - rasterio may be absent
from rasterio.warp import transform, transform_geom  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
    pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning"),
]
NEWEST_FIRST = (
    "HLS.S30.T33TUK.2024165",
    "S2A_32TQQ_20240613",
    "LC09_192029_20240608",
    "S2A_32TQQ_20240603",
    "S2A_33TUK_20240603",
)
"""The items of June without the broken one. Of equal dates the search's order holds, which is that of their ids."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the catalogue, in which the tests run their commands."""
    return make_catalogue(tmp_path_factory.mktemp("area")).parent


def run(folder, llm, monkeypatch, *words):
    """Run a command of ``vllm-mmout`` in the folder with the engine of the tests, and return its status."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    return main(list(words))


SEARCH = ("run", "water-index", "catalog.json", "--stac", "--datetime", "2024-06", "--aoi", "area.geojson", "--mosaic")


@pytest.fixture(scope="module")
def june(folder, llm):
    """The folder of the results of one command line."""
    (folder / "report").mkdir()
    outputs = ("-o", "report/june.gpkg", "--output", "classes,polygons,areas", "--figure", "report/figure.png")
    with pytest.MonkeyPatch.context() as patch:
        assert run(folder, llm, patch, *SEARCH, "--skip-failed", "--scale", "file", "--stac-collection", *outputs) == 0
    return folder / "report"


def classes_of_item(folder, name):
    """Return the classes of an item by the model's formula, 255 where it has no data: uint8 [height, width]."""
    product = ITEMS[name][0]
    files = [folder / product.collection / name / f"{band}.tif" for band in product.names]
    stored = np.stack([rasterio.open(file).read(1) for file in files])
    values = (stored * product.scale + product.offset).astype(np.float32)
    return np.where((stored == product.nodata).any(axis=0), 255, water_oracle.logits(values).argmax(axis=0))


def classes_of_tile(folder, name):
    """Return the classes of a GeoTIFF of six bands by the model's formula, 255 where it has no data."""
    with rasterio.open(folder / "tiles" / f"{name}.tif") as file:
        stored = file.read()
    return np.where((stored == 0).any(axis=0), 255, water_oracle.logits(stored).argmax(axis=0))


def on_map(classes, grid, file):
    """Return for the centre of each pixel of a map the class of the item's pixel that it lies in, else 255."""
    cols, rows = np.meshgrid(np.arange(file.width) + 0.5, np.arange(file.height) + 0.5)
    x, y = transform(file.crs, grid.crs, *(along.ravel() for along in file.transform * (cols, rows)))
    col, row = (
        np.floor(along).astype(int).reshape(file.shape) for along in ~grid.transform * (np.array(x), np.array(y))
    )
    inside = (col >= 0) & (col < grid.size) & (row >= 0) & (row < grid.size)
    return np.where(inside, classes[row.clip(0, grid.size - 1), col.clip(0, grid.size - 1)], 255)


def inside(file):
    """Return the pixels of a map whose centres are in each feature of the area, by its name."""
    shapes = {
        each["properties"]["name"]: transform_geom("EPSG:4326", file.crs, each["geometry"])
        for each in area()["features"]
    }
    return {name: geometry_mask([shape], file.shape, file.transform, invert=True) for name, shape in shapes.items()}


def hand_made(layers, file):
    """Return the mosaic of (classes, grid) on the grid of a map: the first with data, 255 outside of the area."""
    joined = np.full(file.shape, 255)
    for classes, grid in layers:
        joined = np.where(joined == 255, on_map(classes, grid, file), joined)
    return np.where(np.logical_or.reduce(list(inside(file).values())), joined, 255)


def test_one_command_makes_the_map_that_rasterio_makes_by_hand(june, folder):
    """The pixels are those of a hand-made mosaic of items of three sensors and two zones, cut to the area."""
    with rasterio.open(june / "june-classes.tif") as file:
        expected = hand_made([(classes_of_item(folder, name), ITEMS[name][1]) for name in NEWEST_FIRST], file)
        np.testing.assert_array_equal(file.read(1), expected)
        assert {*np.unique(expected)} == {0, 1, 255}
        assert file.tags()["MMOUT_INPUTS"].split("\n") == sorted(NEWEST_FIRST, key=lambda name: (ITEMS[name][2], name))
        left_out, zero, _ = file.tags()["MMOUT_ASSUMED"].split("\n")
    assert left_out.startswith(f"{BROKEN} was left out of the mosaic")
    assert zero.startswith("STAC item S2A_32TQQ_20240603 states nodata 0")
    assert zero.endswith(" The same holds for S2A_33TUK_20240603, LC09_192029_20240608, S2A_32TQQ_20240613.")


def test_its_files_agree(june):
    """The table by feature and the polygons count the pixels of the map; figure and style are there."""
    geopandas = pytest.importorskip("geopandas")
    with rasterio.open(june / "june-classes.tif") as file:
        pixels, features, square = file.read(1), inside(file), abs(file.transform.a * file.transform.e)
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.colormap(1)[1][:3] == (0, 114, 178)
    with (june / "june-areas.csv").open(encoding="utf-8") as table:
        rows = {(row["feature"], row["name"]): int(row["pixels"]) for row in csv.DictReader(table)}
    assert rows == {
        (feature, name): int(((pixels == value) & mask).sum())
        for feature, mask in features.items()
        for value, name in enumerate(("land", "water"))
    }
    polygons = geopandas.read_file(june / "june-polygons.gpkg").to_crs("EPSG:32632")
    water = polygons[polygons["name"] == "water"].area.sum()
    assert water == pytest.approx(square * (pixels == 1).sum())
    assert (june / "june-classes.qml").stat().st_size > 100
    assert (june / "figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.filterwarnings("ignore:The 'stac_validator' package:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The 'shapely.ops.transform:DeprecationWarning")  # odc-stac's use of shapely
def test_its_catalogue_is_valid_and_loads(june):
    """The item has the dates and items of the input. stac-validator accepts both documents; odc-stac loads the map."""
    pystac = pytest.importorskip("pystac")
    odc = pytest.importorskip("odc.stac")
    collection = pystac.Collection.from_file(str(june / "collection.json"))
    (item,) = collection.get_items()
    assert accepted(june / "collection.json")
    assert accepted(june / "june-classes.json")
    assert (item.properties["start_datetime"], item.properties["end_datetime"]) == (
        "2024-06-03T10:00:00Z",
        "2024-06-13T10:00:00Z",
    )
    origins = [Path(link.href).stem for link in item.links if link.rel == "derived_from"]
    assert sorted(origins) == sorted(NEWEST_FIRST)
    loaded = odc.load([item], bands=["data"])["data"]
    with rasterio.open(june / "june-classes.tif") as file:
        np.testing.assert_array_equal(loaded.values[0], file.read(1))


def test_a_broken_asset_and_scales_that_differ_are_refused(folder, llm, monkeypatch, capsys):
    """Without --skip-failed the error names the asset and the flag. Without --scale it has both scales."""
    assert run(folder, llm, monkeypatch, *SEARCH, "--scale", "file", "-o", "map.tif") == 1
    errors = capsys.readouterr().err
    assert f"asset 'red' of STAC item {BROKEN}" in errors
    assert "--skip-failed leaves inputs that cannot be read out of the mosaic" in errors
    assert run(folder, llm, monkeypatch, *SEARCH, "--skip-failed", "-o", "map.tif") == 1
    assert "S2A_32TQQ_20240603 0.0001 with offset 0, and LC09_192029_20240608 2.75e-05 with offset -0.2" in (
        capsys.readouterr().err
    )
    assert not (folder / "map.tif").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--figure", "map.tif"), "has no suffix of a figure"),
        (("--figure", "nowhere/a.png"), "there is no folder nowhere"),
        (("--stac-collection", "-o", "s3://bucket/maps/"), "is in a bucket"),
    ],
)
def test_flags_are_checked_before_the_engine_starts(folder, monkeypatch, capsys, flags, words):
    """A figure in an unknown format or folder, and a collection in a bucket, are refused."""
    monkeypatch.chdir(folder)
    out = () if "-o" in flags else ("-o", "map.tif")
    assert main([*SEARCH, "--skip-failed", *flags, *out]) != 0
    assert words in capsys.readouterr().err


def test_a_figure_is_of_one_result(folder, monkeypatch, capsys):
    """Two inputs without a mosaic have two results, of which a single figure could show one."""
    monkeypatch.chdir(folder)
    files = [f"tiles/{name}.tif" for name in TILES]
    assert main(["run", "water-index", *files, "-o", "maps/", "--figure", "figure.png"]) == 2
    assert "is a figure of one result, and there are 3 inputs" in capsys.readouterr().err
