"""Areas of interest through the real engine: what is run, what is masked, and the statistics of features."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from scenes_for_tests import classes, counted, generate, pixels, probabilities, write

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import Georeference, pixel_areas
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
shapely = pytest.importorskip("shapely", reason="the areas are made by shapely")
from rasterio.features import geometry_mask  # noqa: E402 - rasterio may be absent
from rasterio.transform import Affine  # noqa: E402
from shapely.geometry import Polygon, box, mapping  # noqa: E402

pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32632", "transform": Affine(30, 0, 440280, 0, -30, 5_159_720)}
ARRAY = pixels(3, 150, 170)


def shape(*places):
    """A polygon with corners at (column, row) of the scene."""
    return Polygon([(440280 + 30 * col, 5_159_720 - 30 * row) for col, row in places])


HOOK = shape((10.2, 8.3), (120.7, 8.3), (120.7, 100.1), (110, 100.1), (110, 20), (10.2, 20))
"""Two thin sides of a rectangle: most tiles of its extent hold no pixel of it."""
SMALL = shape((40.5, 30.5), (66.5, 33), (50, 55))
FIELDS = {
    "type": "FeatureCollection",
    "crs": {"type": "name", "properties": {"name": "EPSG:32632"}},
    "features": [
        {
            "type": "Feature",
            "id": "north",
            "properties": {"crop": "rye"},
            "geometry": mapping(shape((5, 5), (90, 5), (60, 60))),
        },
        {
            "type": "Feature",
            "properties": {"name": "south"},
            "geometry": mapping(shape((20, 30), (130, 70), (20, 120))),
        },
        {"type": "Feature", "properties": {}, "geometry": mapping(shape((300, 5), (310, 5), (310, 15)))},
    ],
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return write(tmp_path_factory.mktemp("area") / "in.tif", ARRAY, **PLACE)


def inside(*geometries):
    """The mask of the whole scene, by rasterio."""
    return ~geometry_mask(geometries, ARRAY.shape[1:], PLACE["transform"])


def window_of(array, output):
    """The part of an array of the scene's pixels that an output covers."""
    col, row = (output.transform[2] - 440280) / 30, (5_159_720 - output.transform[5]) / 30
    return array[..., int(row) : int(row) + output.height, int(col) : int(col) + output.width]


def test_only_tiles_of_the_area_are_run(llm, sent, scene):
    """Pixels inside are those of the whole scene, others are nodata, and a tile without a pixel inside is not run."""
    output = generate(llm, scene, aoi=mapping(HOOK), aoi_crs="EPSG:32632")
    assert isinstance(output, StoredRaster)
    assert (output.height, output.width) == (93, 111)
    mask = window_of(inside(HOOK), output)
    np.testing.assert_array_equal(output.array, np.where(mask, window_of(classes(ARRAY), output), 255))
    tiles = [(row, col) for row in range(0, 93, 32) for col in range(0, 111, 32)]
    shifted = [(min(row, 93 - 32), min(col, 111 - 32)) for row, col in tiles]
    touched = [mask[row : row + 32, col : col + 32].any() for row, col in shifted]
    assert len(sent) == sum(touched) < len(tiles) == counted(93) * counted(111)
    assert not any("aoi" in repr(request.pooling_params.extra_kwargs) for request in sent)


@pytest.mark.parametrize("overlap", [0, 6])
def test_one_forward_and_tiles_agree(llm, scene, overlap):
    """The same area gives the same pixels as a whole and in tiles, and their values are those of the model."""
    options = {"aoi": SMALL, "output": "probabilities"}
    whole = generate(llm, scene, tile=None, **options)
    tiles = generate(llm, scene, tile=16, overlap=overlap, **options)
    assert (isinstance(whole, StoredRaster), isinstance(tiles, StoredRaster)) == (False, True)
    assert tiles.transform == whole.transform
    mask = window_of(inside(SMALL), whole)
    for output in (whole, tiles):
        np.testing.assert_array_equal(np.isnan(output.array).any(axis=0), ~mask)
        np.testing.assert_allclose(output.array[:, mask], window_of(probabilities(ARRAY), output)[:, mask], atol=1e-5)


def test_requests_with_an_area_share_batches(llm, scene):
    """Requests with different areas and without one are run together, and each gets its own result."""
    from vllm_mmout import OutputParams

    boxes = [box(*shape(*corners).bounds) for corners in (((3, 3), (20, 3), (20, 20)), ((50, 40), (70, 40), (70, 60)))]
    options = [OutputParams(aoi=boxes[0]), OutputParams(aoi=boxes[1]), OutputParams(window=(0, 0, 20, 20))]
    results = [result.outputs for result in llm.generate([str(scene)] * 3, options, use_tqdm=False)]
    for output in results:
        np.testing.assert_array_equal(output.array, window_of(classes(ARRAY), output))
    assert [(output.height, output.width) for output in results] == [(17, 17), (20, 20), (20, 20)]


@pytest.mark.parametrize("tile", [None, 32], ids=["one forward", "tiles"])
def test_each_feature_has_its_areas(llm, scene, tile):
    """Pixels of each class inside each feature, where a pixel of two counts twice, in the result and in its files."""
    output = generate(llm, scene, aoi=FIELDS, output="areas", tile=tile)
    masks = [inside(feature["geometry"]) for feature in FIELDS["features"][:2]]
    ids = classes(ARRAY)[0]
    assert {area.id: area.pixels for area in output.classes} == {
        number: ((ids == number) & (masks[0] | masks[1])).sum() for number in (0, 1)
    }
    assert list(output.features) == ["north", "south", "3"]
    for name, mask in zip(("north", "south", "3"), [*masks, np.zeros_like(masks[0])], strict=True):
        for number in (0, 1):
            area, count = output.features[name][number], ((ids == number) & mask).sum()
            assert (area.pixels, area.area_m2) == (count, 900 * count)
            assert area.share == pytest.approx(count / max(1, mask.sum()))
    assert output.features["north"].properties == {"crop": "rye"}
    rows = list(csv.DictReader(io.StringIO(output.to_bytes("csv").decode())))
    assert [(row["feature"], row["id"]) for row in rows[:4]] == [
        *(("north", "0"), ("north", "1")),
        *(("south", "0"), ("south", "1")),
    ]
    assert int(rows[3]["pixels"]) == output.features["south"][1].pixels
    assert json.loads(output.to_bytes("json"))["features"]["south"]["classes"][1]["pixels"] == int(rows[3]["pixels"])
    features = json.loads(output.to_bytes("geojson"))
    assert features["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32632"
    name = output.features["north"][1].name
    assert features["features"][0]["properties"]["crop"] == "rye"
    assert features["features"][0]["properties"][f"{name}_m2"] == output.features["north"][1].area_m2
    assert shapely.geometry.shape(features["features"][1]["geometry"]).equals(
        shapely.geometry.shape(FIELDS["features"][1]["geometry"])
    )


def test_features_in_degrees_are_measured(llm, tmp_path):
    """On a raster in degrees, whose pixels differ in area, and for an area in longitude and latitude."""
    place = {"crs": "EPSG:4326", "transform": Affine(0.5, 0, 8, 0, -0.25, 60)}
    path = write(tmp_path / "in.tif", ARRAY[:, :60, :70], **place)
    fields = [box(9.1, 48.2, 20.3, 58.7), Polygon([(10, 46), (40, 46), (30, 59)])]
    features = [{"type": "Feature", "properties": {}, "geometry": mapping(field)} for field in fields]
    output = generate(llm, path, aoi={"type": "FeatureCollection", "features": features}, output="areas")
    rows = pixel_areas(Georeference("EPSG:4326", tuple(place["transform"])[:6]), 60)
    ids = classes(ARRAY)[0, :60, :70]
    for name, field in zip("12", fields, strict=True):
        mask = ~geometry_mask([mapping(field)], (60, 70), place["transform"])
        for number in (0, 1):
            expected = (((ids == number) & mask) * rows[:, np.newaxis]).sum()
            assert output.features[name][number].area_m2 == pytest.approx(expected, rel=1e-12)


def test_one_feature_is_written_as_before(llm, scene):
    """An area of one feature has one table, whose GeoJSON has the feature; without an area there is no GeoJSON."""
    output = generate(llm, scene, aoi=SMALL, output="areas", tile=None)
    assert output.features == {}
    assert sum(area.pixels for area in output.classes) == inside(SMALL).sum()
    assert set(json.loads(output.to_bytes("json"))) == {"classes", "nodata"}
    assert output.to_bytes("csv").startswith(b"id,name,pixels")
    (feature,) = output.geojson["features"]
    assert feature["properties"][f"{output[1].name}_pixels"] == output[1].pixels
    with pytest.raises(SaveError, match="for the features of aoi="):
        generate(llm, scene, output="areas", window=(0, 0, 20, 20)).to_bytes("geojson")


def test_polygons_end_at_the_area(llm, scene):
    """Their pixels are those inside, so that nothing outside is traced."""
    output = generate(llm, scene, aoi=HOOK, output="polygons")
    assert sum(feature["properties"]["pixels"] for feature in output.features()) == inside(HOOK).sum()


def test_an_area_elsewhere_is_the_requests_error(llm, scene):
    """The error names the file, the area and what the file covers."""
    words = r"aoi with the extent \(0, 0, 1, 1\) in EPSG:4326 lies outside of .*in\.tif, which covers \(8\.2"
    with pytest.raises(InputError, match=words):
        generate(llm, scene, aoi=mapping(box(0, 0, 1, 1)))
