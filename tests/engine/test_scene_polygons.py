"""Polygons and areas of single inputs and of scenes, through the real engine."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from scenes_for_tests import TILE, classes, generate, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.outputs import PolygonsOutput

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(21)
GAPS = np.random.default_rng(22).random(ARRAY.shape[1:]) < 0.05
DUG = np.where(GAPS, np.uint16(0), ARRAY)
MASK = classes(ARRAY, ~GAPS)[0]
TRANSFORM = rasterio.Affine(30, 0, 440280, 0, -30, 3159720)


@pytest.fixture
def scene(tmp_path):
    """A scene with gaps, in UTM."""
    return write(tmp_path / "scene.tif", DUG, nodata=0, crs="EPSG:32614", transform=TRANSFORM)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def rasterised(features):
    """The mask that features are, by GDAL."""
    from rasterio.features import rasterize

    pairs = [(one["geometry"], one["properties"]["class"]) for one in features]
    return rasterize(pairs, out_shape=MASK.shape, transform=TRANSFORM, fill=255, dtype="uint8")


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one forward"])
@pytest.mark.parametrize("engine", ["llm", "mp_llm"])
def test_a_file_of_polygons_is_the_mask(engine, tile, request, scene, tmp_path):
    """Pixel for pixel, of tiles and of a whole; beside it lies nothing."""
    llm = request.getfixturevalue(engine)
    temporary = request.getfixturevalue("temporary")  # only now: an engine's sockets lie in that folder
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "x.geojson"
    params = OutputParams(output="polygons", tile=tile, path=str(path))
    (result,) = llm.generate(str(scene), params, use_tqdm=False)
    assert isinstance(result.outputs, PolygonsOutput)
    assert result.outputs.path == str(path)
    read = json.loads(path.read_text())
    np.testing.assert_array_equal(rasterised(read["features"]), MASK)
    assert read["features"] == list(result.outputs.features())
    of_classes = generate(llm, str(scene), tile=tile)
    assert path.read_bytes() == PolygonsOutput(of_classes).to_bytes()
    result.outputs.close()
    of_classes.close()
    assert [child.name for child in (tmp_path / "out").iterdir()] == ["x.geojson"]
    assert list(temporary.iterdir()) == []


def test_blended_tiles_become_the_polygons_of_their_classes(llm, scene):
    """Where tiles overlap probabilities travel, and classes are chosen before polygons are made."""
    found = generate(llm, str(scene), output="polygons", overlap=6)
    of_classes = generate(llm, str(scene), overlap=6)
    np.testing.assert_array_equal(found.classes.array, of_classes.array)
    np.testing.assert_array_equal(rasterised(found.features()), of_classes.array[0])


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one forward"])
def test_areas_are_the_table_alone(llm, scene, tile, tmp_path, temporary):
    """Counted in square metres; no raster is left."""
    out = tmp_path / "out.csv"
    found = generate(llm, str(scene), output="areas", tile=tile, path=str(out))
    counts = np.bincount(MASK[MASK != 255])
    assert [one.pixels for one in found.classes] == counts.tolist()
    assert [one.area_m2 for one in found.classes] == (900.0 * counts).tolist()
    assert found.path == str(out)
    assert out.read_bytes() == found.to_bytes("csv")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("output", "suffix"), [("polygons", ".geojson"), ("areas", ".csv"), ("classes", ".tif")])
def test_a_folder_gets_the_usual_format(llm, scene, tmp_path, output, suffix):
    """Named after the input, which may lie in the same folder where the suffix is another."""
    folder = f"{tmp_path if output != 'classes' else tmp_path / 'out'}/"
    found = generate(llm, str(scene), output=output, path=folder)
    assert found.path == f"{folder}scene{suffix}"


@pytest.mark.parametrize(
    ("output", "name", "known"),
    [("polygons", "x.shp", r"\.geojson, \.parquet"), ("polygons", "x.png", r"\.geojson"), ("areas", "x.tif", r"\.csv")],
)
def test_a_name_that_tells_no_format_is_refused_before_the_scene_is_run(
    llm, sent, scene, tmp_path, output, name, known
):
    """With the suffixes of what is asked for."""
    with pytest.raises(SaveError, match=known):
        generate(llm, str(scene), output=output, path=str(tmp_path / name))
    assert sent == []


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one forward"])
@pytest.mark.parametrize(
    ("place", "name", "why"),
    [
        ({}, "x.geojson", r"no georeference; save it as \.parquet"),
        ({"crs": "EPSG:32614", "gcps": True}, "x.geojson", r"ground control points"),
        ({"transform": TRANSFORM}, "x.geojson", "no coordinate system"),
        ({"transform": TRANSFORM}, "", "no coordinate system"),
    ],
    ids=["nowhere", "points", "no system", "a folder"],
)
def test_geojson_of_a_place_without_a_name_is_refused_before_the_model_runs(
    llm, sent, tmp_path, tile, place, name, why
):
    """Other formats take it."""
    profile = dict(place)
    if profile.pop("gcps", False):
        profile["gcps"] = [rasterio.control.GroundControlPoint(*at, *at) for at in ((0, 0), (0, 9), (9, 0))]
    lost = write(tmp_path / "lost.tif", DUG, nodata=0, **profile)
    with pytest.raises(SaveError, match=why):
        generate(llm, str(lost), output="polygons", tile=tile, path=f"{tmp_path}/{name}")
    assert sent == []
    generate(llm, str(lost), output="polygons", tile=tile, path=str(tmp_path / "x.parquet")).close()
    assert sent


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one forward"])
@pytest.mark.parametrize(
    ("suffix", "package", "extra"), [(".parquet", "pyarrow", "geoparquet"), (".gpkg", "pyogrio", "vector")]
)
def test_vectors_without_their_package_are_refused_before_the_model_runs(
    llm, sent, scene, tmp_path, tile, suffix, package, extra, monkeypatch
):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SaveError, match=rf"{package}; pip install .*\[{extra}\]"):
        generate(llm, str(scene), output="polygons", tile=tile, path=str(tmp_path / f"x{suffix}"))
    assert sent == []


def test_an_unknown_output_names_the_new_ones(llm, scene):
    """Before anything is sent, or by the processor."""
    with pytest.raises(OptionError, match="polygons, areas"):
        generate(llm, str(scene), output="shapes")


@pytest.mark.parametrize("suffix", [".parquet", ".gpkg", ".fgb"])
def test_vectors_of_a_scene(llm, scene, tmp_path, suffix):
    """Read back as the mask, with fewer corners where asked."""
    geopandas = pytest.importorskip("geopandas")
    found = generate(llm, str(scene), output="polygons", path=str(tmp_path / f"x{suffix}"))
    read = geopandas.read_parquet(found.path) if suffix == ".parquet" else geopandas.read_file(found.path)
    assert [child.name for child in Path(found.path).parent.glob("*x*")] == [f"x{suffix}"]
    pairs = zip(read.geometry.__geo_interface__["features"], read["class"].tolist(), strict=True)
    features = [{"geometry": one["geometry"], "properties": {"class": number}} for one, number in pairs]
    np.testing.assert_array_equal(rasterised(features), MASK)
    simple = generate(llm, str(scene), output="polygons", simplify=1.5)
    corners = [sum(map(len, one["geometry"]["coordinates"])) for one in simple.features()]
    assert sum(corners) < read.geometry.count_coordinates().sum()
