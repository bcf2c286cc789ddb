"""KeypointsOutput: points on the picture of their input, and on Earth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Georeference

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import Keypoint, KeypointsOutput, Source

FOUND = KeypointsOutput(
    keypoints=[Keypoint(x=10, y=20, score=0.5), Keypoint(x=30.5, y=4, score=0.25, id=2, label="knee", object=1)],
    size=(40, 60),
)


def test_points_are_geojson_in_coordinates(tmp_path: Path) -> None:
    """Columns and rows become those of the input's system; all else are properties."""
    lying = Georeference(crs="EPSG:32613", transform=(30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0))
    FOUND.placed(Source(size=(40, 60), georeference=lying)).save(tmp_path / "points.geojson")
    first, second = json.loads((tmp_path / "points.geojson").read_text())["features"]
    assert first["geometry"] == {"type": "Point", "coordinates": [440280.0 + 300, 3159720.0 - 600]}
    assert second["properties"] == {"score": 0.25, "id": 2, "label": "knee", "object": 1}


def test_points_of_a_picture_have_no_place() -> None:
    """The error says how to save them."""
    with pytest.raises(SaveError, match="save it as"):
        FOUND.to_bytes("geojson")
    assert KeypointsOutput.model_validate_json(FOUND.to_bytes("json")) == FOUND


def test_points_are_marked_where_they_are() -> None:
    """Pixels change around a point, and nowhere far from one."""
    black = Image.new("RGB", (120, 80))
    drawn = np.asarray(FOUND.placed(Source(size=(40, 60), picture=lambda: black)).image)
    assert drawn[2:14, 55:67].any()
    assert not drawn[60:, 60:].any()
