"""PolygonsOutput: files that GDAL, geopandas and GEOS read, and what they say."""

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
geopandas = pytest.importorskip("geopandas", reason="the oracle is geopandas")
pyogrio = pytest.importorskip("pyogrio", reason="it reads what it wrote")

from absent import without_package  # noqa: E402
from traced import blobs  # noqa: E402 - needs shapely

from vllm_mmout.errors import InputError, OptionError, SaveError  # noqa: E402
from vllm_mmout.geo import Georeference  # noqa: E402
from vllm_mmout.outputs import PolygonsOutput, RasterOutput, Source  # noqa: E402
from vllm_mmout.outputs.formats import FORMATS, arrow, geojson, ogr  # noqa: E402
from vllm_mmout.outputs.stored import StoredRaster  # noqa: E402

_POPEN = subprocess.Popen
CLASSES = blobs(150, 14).astype(np.uint8)
CLASSES[:20, :30] = 255
CLASSES[40:44, 9] = 255
BY_GDAL = (".gpkg", ".fgb")
NAMES = ('a "quoted" name', "wäter", "c")
PLACES = {
    "north up": ("EPSG:32614", (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)),
    "in thirds": ("EPSG:3857", (1 / 3, 0.0, 1e7 / 7, 0.0, -1 / 7, 5e6 / 3)),
    "longitude and latitude": ("EPSG:4326", (0.01, 0.0, 5.1, 0.0, -0.007, 49.3)),
    "south up": ("EPSG:4269", (0.25, 0.0, -180.0, 0.0, 0.25, -90.0)),
    "rotated": ("EPSG:3857", (9.7, 2.6, 1e6, 2.6, -9.7, 5e6)),
    "turned over": ("EPSG:3857", (0.0, 2.5, 1e6, 2.5, 0.0, 5e6)),
}


def result(place="north up", classes=CLASSES, **options):
    """Polygons of classes at a place; None: nowhere."""
    where = None if place is None else Georeference(crs=PLACES[place][0], transform=PLACES[place][1])
    raster = RasterOutput(classes[None], nodata=255, georeference=where, class_names=NAMES)
    return PolygonsOutput(raster, **options)


def rasterised(pairs, transform, size=CLASSES.shape):
    """The classes of pixels by GDAL."""
    from rasterio.features import rasterize

    return rasterize(pairs, out_shape=size, transform=rasterio.Affine(*transform), fill=255, dtype="uint8")


@pytest.mark.parametrize(
    ("suffix", "place"),
    [
        *((suffix, place) for suffix in (".geojson", ".parquet") for place in PLACES),
        *((suffix, "north up") for suffix in BY_GDAL),  # below, they are compared with GeoParquet at other places
        *(pytest.param(suffix, place, marks=pytest.mark.slow) for suffix in BY_GDAL for place in [*PLACES][1:]),
    ],
)
def test_files_are_the_raster(place, suffix, tmp_path):
    """Rasterised again they give each pixel its class; polygons are valid and turn left, in the raster's system."""
    path = result(place).save(tmp_path / f"out{suffix}")
    read = geopandas.read_parquet(path) if suffix == ".parquet" else geopandas.read_file(path)
    crs, transform = PLACES[place]
    assert read.crs.to_epsg() == int(crs[5:])
    back = rasterised(zip(read.geometry, read["class"], strict=True), transform)
    np.testing.assert_array_equal(back, CLASSES)
    assert read.is_valid.all()
    assert read.geometry.exterior.is_ccw.all()
    assert not any(hole.is_ccw for one in read.geometry for hole in one.interiors)
    assert read["pixels"].sum() == (CLASSES != 255).sum()
    assert set(read["name"].where(read["class"] < 3).dropna()) == set(NAMES)
    assert read["name"][read["class"] == 3].isna().all()
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


def test_both_files_and_the_features_say_the_same(tmp_path):
    """Digit for digit."""
    polygons = result("in thirds")
    read = json.loads(polygons.save(tmp_path / "out.geojson").read_bytes())
    assert read["features"] == list(polygons.features())
    parquet = geopandas.read_parquet(polygons.save(tmp_path / "out.parquet"))
    for one, row in zip(read["features"], parquet.itertuples(), strict=True):
        rings = [row.geometry.exterior, *row.geometry.interiors]
        assert one["geometry"]["coordinates"] == [[list(point) for point in ring.coords] for ring in rings]
        assert one["properties"]["area_m2"] == row.area_m2
    bytes_of = polygons.to_bytes()
    assert bytes_of == (tmp_path / "out.geojson").read_bytes() == polygons.to_bytes("geojson")
    assert geopandas.read_parquet(tmp_path / "out.parquet").equals(parquet)


@pytest.mark.parametrize(
    ("suffix", "place"),
    [
        *((".gpkg", place) for place in ("rotated", None)),
        *((".fgb", place) for place in ("in thirds", "longitude and latitude")),
        *(pytest.param(".gpkg", place, marks=pytest.mark.slow) for place in ("in thirds", "longitude and latitude")),
        *(pytest.param(".fgb", place, marks=pytest.mark.slow) for place in ("rotated", None)),
    ],
)
def test_files_of_gdal_hold_what_a_geoparquet_holds(place, suffix, tmp_path):
    """Row by row, digit for digit, though a FlatGeobuf has them in the order of its index; also what lies nowhere."""
    polygons = result(place)
    expected = geopandas.read_parquet(polygons.save(tmp_path / "out.parquet"))
    read = geopandas.read_file(polygons.save(tmp_path / f"out{suffix}"))
    assert list(read.columns) == list(expected.columns)
    tables = [table.assign(text=table.geometry.to_wkb()).sort_values("text") for table in (read, expected)]
    for column in ("class", "name", "pixels", "area_m2", "text"):
        found, wanted = (one[column].astype(object).where(one[column].notna(), None).tolist() for one in tables)
        assert found == wanted, column
    assert read.crs == expected.crs if place else read.crs is None or read.crs.name.startswith("Undefined")
    assert sorted(child.name for child in tmp_path.iterdir()) == sorted(["out.parquet", f"out{suffix}"])


def test_a_shapefile_holds_the_same_features(tmp_path):
    """One zip file has the rows of the GeoParquet, and names in UTF-8; a name that would be cut is refused."""
    polygons = result("rotated")
    expected = geopandas.read_parquet(polygons.save(tmp_path / "out.parquet"))
    read = geopandas.read_file(polygons.save(tmp_path / "out.shp.zip"))
    assert read.crs == expected.crs
    for table in (read, expected):  # rings of a Shapefile are clockwise
        table["geometry"] = table.geometry.normalize()
    assert read.values.tolist() == expected.where(expected.notna(), None).values.tolist()
    named = RasterOutput(np.eye(3, dtype=np.uint8)[None], class_names=["Fläche", "水" * 84])
    frame = geopandas.read_file(PolygonsOutput(named).save(tmp_path / "named.shp.zip"))
    assert set(frame.name) == {"Fläche", "水" * 84}
    long = RasterOutput(np.eye(3, dtype=np.uint8)[None], class_names=["a", "水" * 85])
    with pytest.raises(SaveError, match=r"texts of 254 bytes at most, .*; save as \.gpkg"):
        PolygonsOutput(long).save(tmp_path / "long.shp.zip")
    assert not (tmp_path / "long.shp.zip").exists()


def test_pmtiles_hold_each_polygon_at_the_finest_zoom(tmp_path):
    """Each polygon has its properties and, to an eighth of a pixel, its place; a result without a place is refused."""
    polygons = result(classes=CLASSES[:40, :40])
    expected = polygons.to_geodataframe().to_crs(3857)
    file = polygons.save(tmp_path / "out.pmtiles")
    read = geopandas.read_file(file).set_crs(3857, allow_override=True)
    assert pyogrio.read_info(file)["dataset_metadata"]["maxzoom"] == "12"  # 34.1 metres of the map are 14 of 2.4
    columns = ["class", "name", "pixels", "area_m2"]
    assert set(map(tuple, read[columns].values)) == set(map(tuple, expected[columns].values))
    for number, shapes in expected.groupby("class"):
        found = read[read["class"] == number].union_all()
        assert found.symmetric_difference(shapes.union_all()).area < 0.05 * shapes.area.sum()
        assert found.hausdorff_distance(shapes.union_all()) < 34.1 / 8
    with pytest.raises(SaveError, match=r"this result has no place on it; save as \.gpkg"):
        result(None).save(tmp_path / "nowhere.pmtiles")
    assert [path.name for path in tmp_path.iterdir()] == ["out.pmtiles"]


@pytest.mark.parametrize("name", ["geopackage", "flatgeobuf"])
def test_files_of_gdal_come_in_batches(name, monkeypatch, tmp_path):
    """However small they are, and as bytes too; the index finds a part of the layer."""
    expected = result().to_geodataframe()
    monkeypatch.setattr(arrow, "_ROWS", 7)
    monkeypatch.setattr(arrow, "_BYTES", 900)
    path = result().save(tmp_path / f"out{FORMATS[name].suffixes[0]}")
    assert len(geopandas.read_file(path)) == len(expected)
    (tmp_path / f"bytes{path.suffix}").write_bytes(result().to_bytes(name))
    assert len(geopandas.read_file(tmp_path / f"bytes{path.suffix}")) == len(expected)
    import pyogrio
    from shapely.geometry import box

    assert pyogrio.list_layers(path).tolist() == [["polygons", "Polygon"]]
    assert pyogrio.read_info(path)["capabilities"]["fast_spatial_filter"]
    west, south, east, north = expected.total_bounds
    part = box(west, south, (west + east) / 2, (south + north) / 2)
    assert len(geopandas.read_file(path, bbox=part.bounds)) == expected.intersects(part).sum() < len(expected)


def test_a_frame_is_what_the_files_hold(tmp_path):
    """The same features as reading them back."""
    polygons = result("rotated")
    frame = polygons.to_geodataframe()
    assert frame.equals(geopandas.read_parquet(polygons.save(tmp_path / "out.parquet")))
    read = geopandas.read_file(polygons.save(tmp_path / "out.geojson"))
    assert frame.geometry.to_wkb().tolist() == read.geometry.to_wkb().tolist()
    assert frame["name"].fillna("").tolist() == read["name"].fillna("").tolist()
    assert frame.crs == read.crs


def test_what_gdal_says_is_the_error(monkeypatch, tmp_path):
    """A process that ends early is reported in its own words, and nothing is left."""
    monkeypatch.setattr(ogr, "_CHILD", "import sys\nsys.exit('the disk is full')")
    with pytest.raises(SaveError, match=r"^GDAL cannot write \.gpkg: the disk is full") as raised:
        result().save(tmp_path / "out.gpkg")
    assert isinstance(raised.value.__cause__, OSError)  # a server says that it is not the client's fault
    monkeypatch.setattr(ogr, "_CHILD", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(SaveError, match=r"GDAL cannot write \.fgb: it ended with status -9"):
        result().to_bytes("fgb")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_process_that_writes(monkeypatch, tmp_path):
    """And leaves nothing."""
    started = []
    monkeypatch.setattr(ogr.subprocess, "Popen", lambda *a, **b: started.append(_POPEN(*a, **b)) or started[-1])
    monkeypatch.setattr(arrow.ArrowPolygons, "_batch", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        result().save(tmp_path / "out.gpkg")
    assert started[0].poll() == -9
    assert not list(tmp_path.iterdir())


def _interrupt(_):
    raise KeyboardInterrupt


def test_geojson_is_what_rfc_7946_asks():
    """Rings end where they begin; the system is named as GDAL does it, WGS 84 as longitude and latitude."""
    read = json.loads(result("longitude and latitude").to_bytes("geojson"))
    assert read["crs"]["properties"]["name"] == "urn:ogc:def:crs:OGC:1.3:CRS84"
    assert set(read) == {"type", "crs", "features"}
    for one in read["features"]:
        assert set(one) == {"type", "properties", "geometry"}
        assert all(ring[0] == ring[-1] and len(ring) >= 5 for ring in one["geometry"]["coordinates"])
    assert json.loads(result("north up").to_bytes())["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32614"


def test_geoparquet_says_what_1_1_asks():
    """Version, encoding, types, orientation, PROJJSON and bounds stand in the metadata of the file."""
    from io import BytesIO

    from pyarrow import parquet

    polygons = result("north up")
    file = BytesIO(polygons.to_bytes("parquet"))
    said = json.loads(parquet.read_metadata(file).metadata[b"geo"])
    column = said["columns"]["geometry"]
    assert (said["version"], said["primary_column"]) == ("1.1.0", "geometry")
    assert (column["encoding"], column["geometry_types"]) == ("WKB", ["Polygon"])
    assert column["orientation"] == "counterclockwise"
    assert column["crs"]["id"] == {"authority": "EPSG", "code": 32614}
    assert column["bbox"] == geopandas.read_parquet(BytesIO(file.getvalue())).total_bounds.tolist()


def test_geoparquet_comes_in_row_groups(monkeypatch, tmp_path):
    """Of bounded size, with all polygons."""
    from pyarrow import parquet

    monkeypatch.setattr(arrow, "_ROWS", 10)
    path = result().save(tmp_path / "out.parquet")
    count = len(list(result().features()))
    assert parquet.read_metadata(path).num_row_groups == -(-count // 10)
    assert len(geopandas.read_parquet(path)) == count
    monkeypatch.setattr(arrow, "_BYTES", 1)
    assert parquet.read_metadata(result().save(path)).num_row_groups == count


def test_text_in_small_pieces_is_the_same(monkeypatch):
    """However few corners are written at once, and wherever polygons are cut into blocks."""
    from vllm_mmout.geo.vectors import trace

    frame = np.pad(np.zeros((3, 3), np.uint8), 2, constant_values=1)
    expected = result().to_bytes(), result("rotated").to_bytes("parquet"), result(classes=frame).to_bytes()
    for piece, block in ((1, 2**17), (7, 40), (2**16, 1)):
        monkeypatch.setattr(geojson, "_VERTICES_PER_TEXT", piece)
        monkeypatch.setattr(trace, "BLOCK", block)
        assert result().to_bytes() == expected[0]
        assert result("rotated").to_bytes("parquet") == expected[1]
        assert result(classes=frame).to_bytes() == expected[2]


def test_areas_are_those_of_the_table():
    """What polygons of a class cover is what the class covers, in pixels and square metres."""
    polygons = result("longitude and latitude")
    found = [one["properties"] for one in polygons.features()]
    for one in polygons.areas.classes:
        own = [each for each in found if each["class"] == one.id]
        assert sum(each["pixels"] for each in own) == one.pixels
        assert sum(each["area_m2"] for each in own) == pytest.approx(one.area_m2, rel=1e-12)


def test_a_raster_that_lies_nowhere():
    """Features count in pixels, a GeoParquet says that it knows no system, a GeoJSON is refused: it would mislead."""
    from io import BytesIO

    polygons = result(None)
    pairs = [(one["geometry"], one["properties"]["class"]) for one in polygons.features()]
    np.testing.assert_array_equal(rasterised(pairs, (1, 0, 0, 0, 1, 0)), CLASSES)
    assert {one["properties"]["area_m2"] for one in polygons.features()} == {None}
    read = geopandas.read_parquet(BytesIO(polygons.to_bytes("parquet")))
    assert read.crs is None
    assert read.total_bounds.tolist() == [0, 0, 150, 150]
    with pytest.raises(SaveError, match=r"no georeference; save it as \.parquet"):
        polygons.to_bytes("geojson")


def test_a_system_without_a_code_goes_into_geoparquet():
    """As PROJJSON; GeoJSON has no name for it."""
    from io import BytesIO

    pyproj = pytest.importorskip("pyproj")
    wkt = pyproj.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84").to_wkt("WKT1_GDAL")
    where = Georeference(crs=wkt, transform=PLACES["north up"][1])
    polygons = PolygonsOutput(RasterOutput(CLASSES[None], nodata=255, georeference=where))
    read = geopandas.read_parquet(BytesIO(polygons.to_bytes("parquet")))
    assert read.crs.equals(pyproj.CRS.from_wkt(wkt))
    assert (read["area_m2"] == read["pixels"] * 900).all()
    with pytest.raises(SaveError, match="without an EPSG code"):
        polygons.to_bytes("geojson")


def test_after_an_error_there_is_no_file(tmp_path):
    """Nor a part of one; an older file stays."""
    (tmp_path / "out.geojson").write_text("old")
    with pytest.raises(SaveError):
        result(None).save(tmp_path / "out.geojson")
    with pytest.raises(SaveError, match=r"known: \.geojson, \.parquet"):
        result().save(tmp_path / "out.shp")
    with pytest.raises(SaveError, match="takes no options"):
        result().save(tmp_path / "out.parquet", level=3)
    assert [child.read_text() for child in tmp_path.iterdir()] == ["old"]


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    """And the other formats work."""
    without_package(monkeypatch, "pyarrow")
    with pytest.raises(SaveError, match=r"pyarrow; pip install .*\[geoparquet\]"):
        result().to_bytes("parquet")
    assert result().to_bytes("geojson")


def test_without_pyogrio_the_extra_is_named(monkeypatch):
    """Before anything is traced."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyogrio" else find(name))
    for name, title in (("gpkg", "GeoPackage"), ("fgb", "FlatGeobuf")):
        with pytest.raises(SaveError, match=rf"saving {title} needs pyogrio; pip install .*\[vector\]"):
            result().to_bytes(name)


def test_without_geopandas_the_extra_is_named(monkeypatch):
    """In the words of whoever misses a module."""
    without_package(monkeypatch, "geopandas")
    with pytest.raises(ModuleNotFoundError, match=r"needs geopandas; pip install .*\[geopandas\]"):
        result().to_geodataframe()


def test_the_raster_stays_at_hand(tmp_path):
    """Its picture, its file, its pixels; polygons can be pickled, and are simplified as asked."""
    polygons = result(simplify=1.5)
    assert polygons.image.size == (150, 150)
    assert polygons._repr_png_().startswith(b"\x89PNG")
    with rasterio.open(polygons.save(tmp_path / "out.tif")) as file:
        np.testing.assert_array_equal(file.read(1), CLASSES)
    assert polygons.to_bytes("tif") == polygons.classes.to_bytes("tif")
    again = pickle.loads(pickle.dumps(polygons))  # noqa: S301 - our own
    assert list(again.features()) == list(polygons.features())
    plain = sum(len(ring) for one in result().features() for ring in one["geometry"]["coordinates"])
    assert sum(len(ring) for one in again.features() for ring in one["geometry"]["coordinates"]) < plain / 2
    assert "simplify=1.5" in repr(polygons)


def test_polygons_of_a_raster_on_disk(tmp_path):
    """Are those of one in memory; closing them closes it."""
    path = result().classes.save(tmp_path / "classes.tif")
    known = {"nodata": 255, "georeference": result().classes.georeference, "class_names": NAMES}
    polygons = PolygonsOutput(StoredRaster(path, **known))
    assert polygons.to_bytes() == result().to_bytes()
    polygons.close()
    with pytest.raises(InputError, match="closed"):
        polygons.to_bytes()


def test_polygons_are_laid_on_their_input():
    """The place and the gaps of the input are theirs; the tolerance stays."""
    valid = np.random.default_rng(5).random(CLASSES.shape) < 0.9
    where = Georeference(crs="EPSG:32614", transform=PLACES["north up"][1])
    placed = result(None, simplify=0.4).placed(Source(georeference=where, valid=valid))
    pairs = [(one["geometry"], one["properties"]["class"]) for one in placed.features()]
    expected = np.where(valid, CLASSES, 255)
    np.testing.assert_array_equal(rasterised(pairs, PLACES["north up"][1]), expected)
    assert placed.simplify == 0.4


def test_only_classes_become_polygons():
    """Measurements and several bands are refused."""
    for array in (np.zeros((1, 4, 4), np.float32), np.zeros((2, 4, 4), np.uint8)):
        with pytest.raises(InputError, match="one band of classes"):
            PolygonsOutput(RasterOutput(array))


@pytest.mark.parametrize("distance", [-1, float("nan"), float("inf")])
def test_simplify_is_a_distance(distance):
    """As in the options of a request."""
    with pytest.raises(OptionError, match="simplify must be 0 or more pixels"):
        PolygonsOutput(RasterOutput(np.zeros((1, 2, 2), np.uint8)), simplify=distance)


def test_a_raster_of_nodata_alone_gives_empty_files(tmp_path):
    """All formats hold no polygon, and are read."""
    from io import BytesIO

    empty = result(classes=np.full((5, 6), 255, np.uint8))
    assert json.loads(empty.to_bytes("geojson"))["features"] == []
    assert len(geopandas.read_parquet(BytesIO(empty.to_bytes("parquet")))) == 0
    assert len(empty.to_geodataframe()) == 0
    for suffix in (".gpkg", ".fgb"):
        read = geopandas.read_file(empty.save(tmp_path / f"out{suffix}"))
        assert (len(read), read.crs.to_epsg()) == (0, 32614)


def test_a_system_that_is_not_understood_is_not_left_out(tmp_path):
    """No format writes a file that says there is none; the error says what to do."""
    place = Georeference(None, PLACES["north up"][1], unread_keys={1024: 1, 3072: 30999})
    polygons = PolygonsOutput(RasterOutput(CLASSES[None], nodata=255, georeference=place))
    for suffix in (".parquet", ".geojson", ".gpkg", ".fgb", ".shp.zip"):
        with pytest.raises(SaveError, match=r"not understood here \(assign it, as with gdal_edit.py -a_srs"):
            polygons.save(tmp_path / f"out{suffix}")
        assert list(tmp_path.iterdir()) == []
    for name in ("geojson", "geoparquet", "geopackage", "flatgeobuf"):
        with pytest.raises(SaveError, match="not understood here"):
            FORMATS[name].check_place(place, ".tif")
    polygons.save(tmp_path / "out.tif")
    assert geopandas.read_parquet(result(None).save(tmp_path / "nowhere.parquet")).crs is None
