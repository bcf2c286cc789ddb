"""DetectionOutput: boxes in pixels of the input, on its picture and on Earth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio.transform
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rasterio.transform import Affine

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Georeference, GroundControlPoint

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import DetectionOutput, Source

UTM = (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)
SIZE = (80, 120)
SHIP = {"id": 3, "label": "ship", "score": 0.75, "box": (10.0, 20.0, 40.5, 60.0)}


def found(*boxes: tuple[float, ...], **fields: object) -> DetectionOutput:
    return DetectionOutput(detections=[{**SHIP, "box": box} for box in boxes or [SHIP["box"]]], **fields)


def boxes_of(output: DetectionOutput) -> list[tuple[float, ...]]:
    return [one.box for one in output.detections]


def test_the_box_of_the_whole_picture_is_its_size() -> None:
    """Edges count, not the middles of pixels: 0, 0, width, height."""
    placed = found((0, 0, 1, 1), units="relative").placed(Source(size=SIZE))
    assert (boxes_of(placed), placed.units, placed.size) == ([(0, 0, 120, 80)], "pixels", SIZE)


@settings(max_examples=60)
@given(
    st.tuples(*[st.floats(-100, 100)] * 4).map(lambda b: (min(b[0], b[2]), min(b[1], b[3]), *map(abs, b[2:]))),
    st.tuples(*[st.integers(50, 500)] * 2),
    st.none() | st.tuples(*[st.integers(50, 500)] * 2),
)
def test_placing_twice_is_placing_once(
    box: tuple[float, ...], size: tuple[int, int], seen: tuple[int, int] | None
) -> None:
    """A result that lies on its input already, or comes from its JSON, is not scaled again."""
    source = Source(size=size, seen=seen)
    placed = found(box).placed(source)
    assert placed.placed(source) == placed
    assert DetectionOutput.model_validate_json(placed.to_bytes()).placed(source) == placed
    for left, top, right, bottom in boxes_of(placed):
        assert 0 <= left < right <= size[1]
        assert 0 <= top < bottom <= size[0]


def test_placing_leaves_the_original_alone() -> None:
    """The result of placing is a new one."""
    output = found((-5, 0, 500, 20))
    output.placed(Source(size=SIZE))
    assert (boxes_of(output), output.size) == ([(-5, 0, 500, 20)], None)


@pytest.mark.parametrize(
    "transform",
    [
        UTM,
        (8.66, 5.0, 440280.0, 5.0, -8.66, 3159720.0),
        (10.0, 0.0, 5.0, 0.0, 10.0, 7.0),
        tuple(Affine.translation(500000, 100) @ Affine.rotation(33) @ Affine.scale(0.3, -2))[:6],
    ],
    ids=["north up", "rotated", "south up", "rotated and stretched"],
)
@pytest.mark.parametrize("point", ["Area", "Point"])
def test_geojson_has_the_corners_that_rasterio_computes(
    tmp_path: Path, transform: tuple[float, ...], point: str
) -> None:
    """Each box is a closed, counterclockwise ring of its four corners in the scene's own coordinates."""
    place = Georeference(crs="EPSG:32614", transform=transform, pixel_is_point=point == "Point")
    output = found().placed(Source(size=SIZE, georeference=place))
    collection = json.loads(output.save(tmp_path / "ships.geojson").read_text())
    assert collection == output.geojson == json.loads(output.to_bytes("geojson"))
    assert collection["crs"] == {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32614"}}
    (feature,) = collection["features"]
    assert (collection["type"], feature["type"]) == ("FeatureCollection", "Feature")
    assert feature["properties"] == {"id": 3, "label": "ship", "score": 0.75}
    (ring,) = feature["geometry"]["coordinates"]
    left, top, right, bottom = SHIP["box"]
    xs, ys = rasterio.transform.xy(
        Affine(*transform), [top, bottom, bottom, top], [left, left, right, right], offset="ul"
    )
    assert sorted(map(tuple, ring[:4])) == pytest.approx(np.array(sorted(zip(xs, ys, strict=True))))
    assert (feature["geometry"]["type"], ring[0]) == ("Polygon", ring[4])
    area = sum(x * ring[at + 1][1] - ring[at + 1][0] * y for at, (x, y) in enumerate(ring[:4])) / 2
    assert area == pytest.approx(30.5 * 40 * abs(Affine(*transform).determinant))


def test_longitude_and_latitude_are_named_as_gdal_does() -> None:
    """EPSG:4326 has latitude first; coordinates here have longitude first, which is CRS84."""
    place = Georeference(crs="EPSG:4326", transform=(0.1, 0, 10, 0, -0.1, 50))
    collection = found().placed(Source(size=SIZE, georeference=place)).geojson
    assert collection["crs"]["properties"]["name"] == "urn:ogc:def:crs:OGC:1.3:CRS84"
    assert collection["features"][0]["geometry"]["coordinates"][0][0] == [11, 48]


def test_nothing_found_is_a_collection_without_features() -> None:
    """A scene without objects has its GeoJSON, its JSON and its picture."""
    place = Georeference(crs="EPSG:32614", transform=UTM)
    output = DetectionOutput(detections=[]).placed(
        Source(size=SIZE, georeference=place, picture=lambda: Image.new("RGB", (120, 80), "grey"))
    )
    assert output.geojson["features"] == []
    assert output.image.getcolors() == [(9600, (128, 128, 128))]
    assert json.loads(output.to_bytes()) == {"detections": [], "units": "pixels", "size": [80, 120]}


@pytest.mark.parametrize(
    ("source", "fields", "words"),
    [
        (None, {}, "needs a georeferenced input, this result's has no georeference; save it as .json"),
        (Source(size=SIZE), {}, "has no georeference"),
        (
            Source(size=SIZE, georeference=Georeference(gcps=[GroundControlPoint(0, 0, 1, 1)], gcps_crs="EPSG:4326")),
            {},
            r"ground control points or RPCs; warp it first \(gdalwarp\)",
        ),
        (Source(size=SIZE, georeference=Georeference(transform=UTM)), {}, "input has no coordinate system; reproject"),
        (
            Source(size=SIZE, georeference=Georeference(transform=UTM, crs='PROJCS["mine"]')),
            {},
            "a coordinate system without an EPSG code; reproject it",
        ),
        (
            Source(georeference=Georeference(transform=UTM, crs="EPSG:32614")),
            {"units": "relative"},
            r"needs the input's size, which is unknown; set it with placed\(Source\(size=...\)\)",
        ),
    ],
)
def test_without_a_place_that_geojson_can_name_the_error_says_what_to_do(
    tmp_path: Path, source: Source | None, fields: dict[str, object], words: str
) -> None:
    """The error says what is missing and the way out; nothing is written."""
    output = found(**fields)
    if source is not None:
        output = output.placed(source)
    with pytest.raises(SaveError, match=words):
        _ = output.geojson
    with pytest.raises(SaveError, match=words):
        output.save(tmp_path / "a.geojson")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("zoom", [0.5, 1, 2])
def test_boxes_are_drawn_where_they_lie(zoom: float) -> None:
    """The outline is within the box, on the input's picture of any size."""
    size = (int(120 * zoom), int(80 * zoom))
    source = Source(size=SIZE, picture=lambda: Image.new("RGB", size, (200, 200, 200)))
    output = found((20, 30, 100, 70)).placed(source)
    output.detections[0].label = ""
    changed = (np.asarray(output.image) != 200).any(axis=2)
    rows, cols = np.nonzero(changed[int(30 * zoom) :])
    assert (cols.min(), cols.max() + 1) == (20 * zoom, 100 * zoom)
    assert rows.max() + 1 == 40 * zoom
    assert not changed[int(50 * zoom), int(60 * zoom)]
    assert not changed[: int(16 * zoom) - 6].any()


def test_relative_boxes_are_drawn_as_well() -> None:
    """Where the size is not known the picture's own counts."""
    source = Source(picture=lambda: Image.new("RGB", (100, 100), (200, 200, 200)))
    changed = (np.asarray(found((0.5, 0.5, 1, 1), units="relative").placed(source).image) != 200).any(axis=2)
    assert changed[60:, 50].all()
    assert not changed[60:, 49].any()
