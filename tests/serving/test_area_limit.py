"""``--mmout-max-area``: how much ground one input may cover."""

from __future__ import annotations

import httpx
import pytest
from scene_clients import ask
from scenes_for_tests import pixels, write

rasterio = pytest.importorskip("rasterio", reason="makes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
UTM = {"crs": "EPSG:32614", "transform": rasterio.Affine(100, 0, 500_000, 0, -100, 3_000_000)}
DEGREES = {"crs": "EPSG:4326", "transform": rasterio.Affine(0.001, 0, -99.0, 0, -0.001, 60.0)}
LONG = {"height": 80, "width": 160}


def answer(guarded_server, tmp_path, place, size=None, **form):
    """What the server, which takes 50 km2, says of a scene of 80 x 80 pixels."""
    array = pixels(3, **(size or {"height": 80, "width": 80}))
    content = write(tmp_path / "scene.tif", array, **place).read_bytes()
    key = {"Authorization": "Bearer secret"}
    return ask(guarded_server, "POST", "/v1/images/edits", files={"image": content}, data=form, headers=key)


@pytest.mark.parametrize(
    ("place", "size", "km2"),
    [
        (UTM, None, "64"),
        (UTM, LONG, "128"),  # it would be cut into tiles
        (DEGREES, LONG, "79.67"),  # half as many as at the equator
    ],
)
def test_more_ground_than_a_request_may_have(guarded_server, tmp_path, place, size, km2):
    """It is refused before the model runs, with what it covers, what may be, and what to do."""
    said = answer(guarded_server, tmp_path, place, size, tile=64)
    assert said.status_code == httpx.codes.BAD_REQUEST, said.text
    error = said.json()["error"]
    assert error["message"] == (
        f"the input covers {km2} km² on the ground, and a request may have 50 km²; cut out a part with window=... or"
        " bbox=...; a server's limit is --mmout-max-area"
    )
    assert error["param"] == "image"


@pytest.mark.parametrize(
    ("place", "form"),
    [
        (UTM, {"window": "0,0,70,70"}),
        (UTM, {"bbox": "500000,2993000,507000,3000000"}),
        (DEGREES, {}),
        ({}, {}),  # pixels without a place cover no ground that anybody knows of
        ({"crs": UTM["crs"]}, {}),
    ],
)
def test_what_covers_less_is_answered(guarded_server, tmp_path, place, form):
    """A part that is cut out counts alone; where nobody can tell the area, there is none."""
    said = answer(guarded_server, tmp_path, place, **form)
    assert said.status_code == httpx.codes.OK, said.text
