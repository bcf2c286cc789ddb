"""Areas of maps that are in memory or saved: `RasterOutput.areas`, nodata of each feature, and ``vllm-mmout areas``."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from rasterio.features import geometry_mask
from rasterio.transform import Affine
from rasterio.warp import transform_geom

from vllm_mmout import open_result
from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, area_of, area_text, pixel_areas, placed_area
from vllm_mmout.outputs import AreasOutput, PolygonsOutput, RasterOutput, Source, class_rows, zonal
from vllm_mmout.outputs.stored import StoredRaster

SIZE = (60, 80)
IDS = np.random.default_rng(4).choice([0, 1, 255], SIZE, p=[0.5, 0.3, 0.2]).astype(np.uint8)
UTM = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 440_000.0, 0.0, -10.0, 5_160_000.0))
DEGREES = Georeference(crs="EPSG:4326", transform=(0.5, 0.0, 8.0, 0.0, -0.25, 60.0))
FIELDS = {
    "north": [(3, 4), (60, 6), (30, 40), (3, 4)],
    "south": [(20, 20), (70, 25), (40, 58), (20, 20)],
    "east": [(60, 5), (130, 5), (130, 30), (60, 5)],
    "away": [(200, 5), (210, 5), (210, 30), (200, 5)],
}
"""Corners (column, row) of features: two overlap, one is partly outside the map, and one is outside."""


def raster(georeference=UTM, ids=IDS, **known):
    """Return a map of two classes with nodata."""
    known = {"nodata": 255, "class_names": ("land", "water"), **known}
    return RasterOutput(ids[None], georeference=georeference, **known)


def area(georeference=UTM, names=tuple(FIELDS)):
    """Return features as GeoJSON in the coordinate system of a map."""
    features = []
    for name in names:
        ring = [Affine(*georeference.transform) @ corner for corner in FIELDS[name]]
        geometry = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "id": name, "properties": {"kind": "field"}, "geometry": geometry})
    crs = {"type": "name", "properties": {"name": georeference.crs}}
    return {"type": "FeatureCollection", "crs": crs, "features": features}


def masks(georeference=UTM):
    """Return the mask of each feature, by rasterio."""
    affine = Affine(*georeference.transform)
    return {each["id"]: ~geometry_mask([each["geometry"]], SIZE, affine) for each in area(georeference)["features"]}


def checked(table, mask, georeference=UTM):
    """Assert that a table has the pixels and square metres of the map inside a mask."""
    square = np.broadcast_to(pixel_areas(georeference, SIZE[0])[:, np.newaxis], SIZE)
    for row, number in ((table[0], 0), (table["water"], 1), (table.nodata, 255)):
        inside = mask & (number == IDS)
        assert row.pixels == inside.sum()
        assert row.area_m2 == pytest.approx(square[inside].sum(), rel=1e-12)
    assert table[1].share == pytest.approx((mask & (IDS == 1)).sum() / max(1, (mask & (IDS != 255)).sum()))


@pytest.mark.parametrize("georeference", [UTM, DEGREES], ids=["metres", "degrees"])
def test_nodata_of_each_feature_is_counted(georeference, tmp_path):
    """The table of a saved map and of each feature equal rasterio's masks. Only pixels inside are counted."""
    path = raster(georeference).save(tmp_path / "map.tif")
    areas = open_result(path).areas(area(georeference))
    inside = masks(georeference)
    checked(areas, np.logical_or.reduce(list(inside.values())), georeference)
    assert list(areas.features) == list(FIELDS)
    for name, mask in inside.items():
        checked(areas.features[name], mask, georeference)
    assert areas.features["away"].nodata.pixels == 0
    assert areas.model_dump() == raster(georeference).areas(area(georeference)).model_dump()
    checked(open_result(path).areas(), np.ones(SIZE, np.bool_), georeference)


def test_an_area_takes_the_forms_of_a_request(tmp_path):
    """GeoJSON in degrees as a dict, a text and a file, and a geometry with ``aoi_crs``, are the same area."""
    shape = area(names=["south"])["features"][0]["geometry"]
    degrees = transform_geom("EPSG:32632", "EPSG:4326", shape, precision=12)
    expected = raster().areas(shape, "EPSG:32632")
    assert expected.features == {}
    checked(expected, masks()["south"])
    (tmp_path / "south.geojson").write_text(json.dumps(degrees))
    for aoi in (degrees, json.dumps(degrees), tmp_path / "south.geojson"):
        assert raster().areas(aoi).nodata == expected.nodata
    with pytest.raises(OptionError, match="aoi_crs is 'EPSG:32632' without aoi"):
        raster().areas(aoi_crs="EPSG:32632")
    with pytest.raises(InputError, match="lies outside of the raster"):
        raster().areas(area(names=["away"]))
    with pytest.raises(InputError, match="one band of classes"):
        RasterOutput(np.zeros((1, 4, 4), np.float32)).areas()


def test_a_map_is_read_in_blocks_around_the_area(monkeypatch):
    """Blocks of a few rows give the same table, and no pixel away from the area is read."""
    expected = raster().areas(area(names=["north", "south"]))
    windows = []

    class Spied(RasterOutput):
        def read(self, window=None):
            windows.append(window)
            return super().read(window)

    monkeypatch.setattr(class_rows, "_ROWS", 16)
    monkeypatch.setattr(zonal, "_CHUNK_PIXELS", 200)
    spied = Spied(IDS[None], nodata=255, georeference=UTM, class_names=("land", "water"))
    assert spied.areas(area(names=["north", "south"])) == expected
    assert [window.row % 16 for window in windows[1:]] == [0] * len(windows[1:])
    assert all(first.row + first.height == then.row for first, then in pairwise(windows))
    assert (windows[0].row, windows[0].col) >= (2, 2)
    assert max(window.col + window.width for window in windows) <= 72


def test_pixels_outside_the_area_of_a_request_are_not_unobserved(tmp_path):
    """A request's masked map has the nodata of the unmasked one. Where nodata were counted before, it is unknown."""
    for names in (["south"], ["north", "south"]):
        aoi = area_of(area_text(area(names=names)))
        placed = placed_area(aoi, UTM, SIZE, "the map")
        mask = np.logical_or.reduce([masks()[name] for name in names])
        source = Source(georeference=UTM, valid=mask, area=placed)
        expected = raster().areas(area(names=names))
        assert AreasOutput.taking(raster(None)).placed(source) == expected
        saved = raster(None).placed(source).save(tmp_path / "map.tif")
        known = raster().described
        assert AreasOutput.taking(StoredRaster(saved, **known), placed).placed(source) == expected
        if len(names) == 1:
            before = AreasOutput.taking(StoredRaster(saved, **known)).placed(source)
            assert (before.classes, before.nodata) == (expected.classes, None)
    assert PolygonsOutput(raster()).areas.nodata is None


def test_files_have_nodata_beside_the_classes():
    """CSV has two columns at the end, GeoJSON two properties, and JSON a field. Unknown values are empty."""
    areas = raster().areas(area())
    expected = {name: feature.nodata for name, feature in areas.features.items()}
    rows = list(csv.DictReader(io.StringIO(areas.to_bytes("csv").decode())))
    assert list(rows[0])[-2:] == ["nodata_pixels", "nodata_m2"]
    assert [(row["feature"], row["name"]) for row in rows] == [
        (name, of) for name in FIELDS for of in ("land", "water")
    ]
    for row in rows:
        nodata = expected[row["feature"]]
        assert (int(row["nodata_pixels"]), float(row["nodata_m2"])) == (nodata.pixels, nodata.area_m2)
    written = json.loads(areas.to_bytes("json"))
    assert written["nodata"] == {"pixels": areas.nodata.pixels, "area_m2": areas.nodata.area_m2}
    assert written["features"]["north"]["nodata"]["pixels"] == expected["north"].pixels
    for feature in json.loads(areas.to_bytes("geojson"))["features"]:
        assert feature["properties"]["nodata_pixels"] == expected[feature["id"]].pixels
        assert feature["properties"]["nodata_m2"] == expected[feature["id"]].area_m2
    areas.nodata = None
    areas.features = {}
    assert areas.to_bytes("csv").decode().splitlines()[1].endswith(',"",""')
    assert json.loads(areas.to_bytes("json"))["nodata"] is None


def test_a_feature_without_classes_has_a_row():
    """A feature under clouds is in the table of a map without names, too."""
    clouded = raster(ids=np.where(masks()["north"], np.uint8(255), IDS), class_names=None)
    areas = clouded.areas(area(names=["north", "south"]))
    assert areas.features["north"].classes == []
    row = next(csv.DictReader(io.StringIO(areas.to_bytes("csv").decode())))
    assert (row["feature"], row["id"], row["pixels"]) == ("north", "", "")
    assert int(row["nodata_pixels"]) == masks()["north"].sum()


def test_the_command_counts_a_saved_map(tmp_path, capsys, monkeypatch):
    """``vllm-mmout areas`` prints the table, or writes it, and refuses files that hold no table."""
    monkeypatch.chdir(tmp_path)
    raster().save("map.tif")
    (tmp_path / "fields.geojson").write_text(json.dumps(area()))
    assert main(["areas", "map.tif"]) == 0
    assert capsys.readouterr().out == raster().areas().to_bytes("csv").decode()
    expected = raster().areas(area())
    for suffix in ("csv", "json", "geojson"):
        assert main(["areas", "map.tif", "--aoi", "fields.geojson", "-o", f"out.{suffix}"]) == 0
        assert capsys.readouterr().out == f"out.{suffix}\n"
        assert (tmp_path / f"out.{suffix}").read_bytes() == expected.to_bytes(suffix)
    for arguments, message in (
        (["-o", "out.png"], "no suffix of a table"),
        (["-o", "out.geojson"], "give --aoi"),
        (["--aoi-crs", "EPSG:32632"], "without aoi"),
    ):
        assert main(["areas", "map.tif", *arguments]) == 2
        assert message in capsys.readouterr().err
