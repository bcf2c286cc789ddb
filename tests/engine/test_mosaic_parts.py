"""The part of a mosaic that a bounding box or an area of interest asks for: its edges, and the antimeridian."""

from __future__ import annotations

import numpy as np
import pytest
from scenes_for_tests import generate, pixels, write

from vllm_mmout import Mosaic
from vllm_mmout.errors import InputError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
from rasterio.transform import Affine  # noqa: E402 - rasterio may be absent
from rasterio.warp import transform, transform_bounds  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
    pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning"),
]
EAST = [(179.97, 9.9902), (180.01, 9.9902), (180.01, 10.0103), (179.97, 10.0103)]
"""Corners of a rectangle across the antimeridian."""
FORMS = {
    "beyond": [EAST],
    "crossing": [[(x - 360 * (x > 180), y) for x, y in EAST]],
    "split": [[(min(x, 180), y) for x, y in EAST], [(max(x, 180) - 360, y) for x, y in EAST]],
}
"""Polygons that are this rectangle."""


def polygons(parts):
    """A MultiPolygon of rings that are not closed."""
    return {"type": "MultiPolygon", "coordinates": [[[*part, part[0]]] for part in parts]}


@pytest.fixture(scope="module")
def across(tmp_path_factory):
    """A mosaic of zones 60 and 1 and one of a scene in degrees from 179.9 on, both across the antimeridian."""
    folder = tmp_path_factory.mktemp("across")
    zones = {
        "EPSG:32660": Affine(30, 0, 824_490, 0, -30, 1_109_100),
        "EPSG:32601": Affine(30, 0, 171_120, 0, -30, 1_109_100),
    }
    files = [
        write(folder / f"{crs[5:]}.tif", pixels(seed, 120, 150), crs=crs, transform=place)
        for seed, (crs, place) in enumerate(zones.items())
    ]
    degrees = Affine(0.001, 0, 179.9033, 0, -0.001, 10.0702)
    file = write(folder / "degrees.tif", pixels(3, 150, 200), crs="EPSG:4326", transform=degrees)
    return Mosaic(files, "first"), Mosaic([file], "first")


@pytest.mark.parametrize("form", FORMS)
def test_an_area_across_the_antimeridian_is_that_of_all_scenes(llm, across, tmp_path, form):
    """Pixels inside are those whose centre is inside by PROJ, also in a scene in degrees."""
    for name, mosaic in zip(("zones", "degrees"), across, strict=True):
        generate(llm, mosaic, path=str(tmp_path / f"{name}.tif"))
        with rasterio.open(tmp_path / f"{name}.tif") as file:
            cols, rows = np.meshgrid(np.arange(file.width) + 0.5, np.arange(file.height) + 0.5)
            places = file.transform * (cols.ravel(), rows.ravel())
            x, y = map(np.array, transform(file.crs, "EPSG:4326", *places) if name == "zones" else places)
            inside = (x % 360 > 179.97) & (x % 360 < 180.01) & (y > 9.9902) & (y < 10.0103)
            counts = np.bincount(file.read(1).ravel()[inside], minlength=256)
        classes = generate(llm, mosaic, aoi=polygons(FORMS[form]), output="areas").classes
        np.testing.assert_allclose([each.pixels for each in classes], counts[:2], atol=2)  # centres on the border
        assert min(counts[:2]) > 100


def test_pixels_at_the_edge_of_a_bounding_box_have_data(llm, across):
    """On a coarse grid of another system, the map with a box is a part of the map without it."""
    mosaic = Mosaic(across[0].inputs[:1], "first", grid=("EPSG:3832", 100))
    whole = generate(llm, mosaic)
    box = transform_bounds("EPSG:32660", "EPSG:4326", 825_700, 1_106_500, 827_500, 1_108_200)
    part = generate(llm, mosaic, bbox=box, bbox_crs="EPSG:4326")
    col = round((part.transform[2] - whole.transform[2]) / 100)
    row = round((whole.transform[5] - part.transform[5]) / 100)
    expected = whole.array[:, row : row + part.height, col : col + part.width]
    np.testing.assert_array_equal(part.array, expected, strict=True)
    assert (part.array != 255).all()


def test_an_area_without_a_width_is_named(llm, across):
    """The error of a mosaic is about the aoi, as that of a single scene."""
    line = [(179.97, 9.9902), (179.97, 10.0103), (179.97, 10)]
    with pytest.raises(InputError, match=r"aoi with the extent .* covers the centre of no pixel of the map"):
        generate(llm, across[0], aoi=polygons([line]))
