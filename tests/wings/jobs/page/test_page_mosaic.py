"""Several scenes and an area in the page: one map of a mosaic, cut to polygons."""

from __future__ import annotations

import json

import numpy as np
import pytest
from browsing import address, current_job, drop, fill, finished, given, legend, pixels
from scenes_for_tests import pixels as scene_pixels
from scenes_for_tests import write

httpx = pytest.importorskip("httpx", reason="results are compared with what the server sends")
rasterio = pytest.importorskip("rasterio", reason="inputs are written and maps are read by rasterio")
from rasterio.warp import transform  # noqa: E402 - rasterio may be absent

pytestmark = pytest.mark.engine


@pytest.fixture
def scenes(tmp_path):
    """Two scenes of neighbouring zones and different sizes."""
    places = {"east": (32633, 268_000, (60, 80)), "west": (32632, 730_000, (75, 90))}
    return [
        write(
            tmp_path / f"{name}_2024-05-01.tif",
            scene_pixels(zone, *size),
            nodata=0,
            crs=f"EPSG:{zone}",
            transform=rasterio.Affine(30, 0, west, 0, -30, 5_099_000),
        )
        for name, (zone, west, size) in places.items()
    ]


def box_of(file, rows, cols):
    """A polygon around rows and columns of a GeoTIFF, in degrees."""
    with rasterio.open(file) as raster:
        ring = [raster.transform @ (col, row) for row, col in zip([0, 0, rows, rows], [0, cols, cols, 0], strict=True)]
        x, y = transform(raster.crs, "EPSG:4326", *zip(*ring, strict=True))
    ring = list(zip(x, y, strict=True))
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


def test_several_scenes_and_an_area_become_one_map(visit, page_server, scenes, tmp_path):
    """Several files are a mosaic once that is chosen. Files that are no bands stay chosen for it."""
    page = visit(page_server)
    broken = tmp_path / "broken.tif"
    broken.write_bytes(b"II*\0" + b"no tiff" * 20)
    drop(page, broken, scenes[0])
    page.wait_for_selector("#notice", state="visible")
    assert page.inner_text("#input-name") == "broken.tif and 1 more"
    assert page.is_visible("#files-are")
    assert page.is_disabled("#run")
    given(page, *scenes)
    assert page.is_disabled("#order")  # bands are no mosaic
    page.select_option("#files-are", "scenes")
    page.wait_for_function("() => /scenes/.test(document.querySelector('#input-facts').textContent)")
    page.wait_for_selector("#run:enabled", state="visible")
    assert "2 scenes, the first is shown" in page.inner_text("#input-facts")
    page.select_option("#order", "first")
    area = tmp_path / "area.geojson"
    area.write_text(json.dumps(box_of(scenes[0], 30, 40)), encoding="utf-8")
    drop(page, area)
    page.wait_for_function("() => document.activeElement.name === 'aoi' && document.activeElement.value")
    page.click("#run")
    finished(page)
    content = httpx.get(f"{address(page)}/v1/scenes/{current_job(page)}/content").content
    with rasterio.MemoryFile(content) as memory, memory.open() as file:
        assert file.tags()["MMOUT_INPUTS"].split("\n") == [path.name for path in scenes]
        assert file.tags()["MMOUT_MOSAIC"] == "first"
        classified = file.read(1)
    assert (classified[:30, :40] != 255).mean() > 0.9
    np.testing.assert_array_equal(pixels(page, "overlay")[..., 3] == 255, classified != 255)
    counts = {name: area for name, _, _, area, _ in legend(page)}
    assert counts == {name: 900 * (classified == n).sum() for n, name in enumerate(("land", "water"))}
    assert "mosaic=first" in page.text_content("#curl")
    fill(page, aoi='{"type": "Point", "coordinates": [1, 2]}')
    page.click("#run")
    page.wait_for_selector("#notice", state="visible")
    assert page.evaluate("() => document.activeElement.name") == "aoi"
    fill(page, aoi="")
    given(page, scenes[0])
    assert page.is_hidden("#several")
    assert page.is_disabled("#order")  # so that the next request is no mosaic
