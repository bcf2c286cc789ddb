"""The page in a browser, against a server of the embedded model: from a dropped file to a saved map."""

from __future__ import annotations

import numpy as np
import pytest
from browsing import (
    NODATA,
    address,
    coloured,
    current_job,
    given,
    legend,
    named,
    pixels,
    point_at,
    readout,
    run,
    run_anew,
    visited,
)
from scene_clients import UNFINISHED

httpx = pytest.importorskip("httpx", reason="results are compared with what the server sends")
rasterio = pytest.importorskip("rasterio", reason="the oracle of coordinates is rasterio")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def page(browser, page_server, scene):
    """The page with the usual result of the scene, for tests that look at it."""
    with visited(browser, page_server.url) as page:
        given(page, scene)
        run(page)
        yield page


@pytest.fixture(scope="module")
def ready(same_page, scene):
    """Another page with the scene, for tests that run it."""
    given(same_page, scene)
    return same_page


def test_the_overlay_is_the_mask_in_the_colours_of_the_legend(page, mask):
    """Each pixel of the overlay has the colour of its class, and no pixel beyond the swath has any."""
    rows = legend(page)
    assert [name for name, *_ in rows] == ["land", "water"]
    np.testing.assert_array_equal(pixels(page, "overlay"), coloured(mask, rows))


def test_the_legend_counts_pixels_and_areas(page, mask):
    """Shares are of the pixels with data, areas are pixels times the file's 100 square metres, shown in km²."""
    counts = np.bincount(mask[mask != NODATA], minlength=2)
    for (_, _, share, area, text), count in zip(legend(page), counts, strict=True):
        assert share == f"{100 * count / counts.sum():.1f} %"
        assert area == count * 100
        assert float(text) == pytest.approx(count * 100 / 1e6, rel=1e-3)
    assert "km²" in page.inner_text("#legend thead")


def test_the_mosaic_grows_as_progress_does(ready, page_server, mask):
    """Tiles and finished pixels go up, seen before the end, and what is finished is as in the result."""
    seen = [0]

    def further(url):
        job = httpx.get(url).json()
        done = (job["tiles"] or {"done": 0})["done"]
        is_further = done > seen[0] or job["status"] not in UNFINISHED
        seen[0] = done
        return is_further

    def answer(route):
        """Have the engine go on until there is something new, and no longer."""
        if route.request.method == "GET":
            run_until(lambda: further(route.request.url))
        route.fallback()

    ready.evaluate("""() => {
        window.tiles = [];
        window.opaque = [];
        const text = document.getElementById("progress-text");
        const overlay = document.getElementById("overlay");
        new MutationObserver(() => {
            const match = text.textContent.match(/^(\\d+) of (\\d+) tiles$/);
            if (match) window.tiles.push(match.slice(1).map(Number));
        }).observe(text, { childList: true });
        new MutationObserver(() => {
            const { data } = overlay.getContext("2d").getImageData(0, 0, overlay.width, overlay.height);
            if (overlay.width > 1) window.opaque.push(data.filter((each, i) => i % 4 === 3 && each === 255).length);
        }).observe(overlay, { attributeFilter: ["width"] });
    }""")
    with page_server.stopped_engine() as run_until:
        ready.route("**/v1/scenes/*", answer)
        run_anew(ready, tile=8)
        ready.unroute("**/v1/scenes/*")
    tiles, opaque = ready.evaluate("() => [window.tiles, window.opaque]")
    done = [each for each, _ in tiles]
    assert done == sorted(done)
    assert {total for _, total in tiles} == {64 * 64}
    assert any(0 < each < 64 * 64 for each in done)
    assert opaque == sorted(opaque)
    assert 0 < opaque[0] < opaque[-1] == np.count_nonzero(mask != NODATA)
    np.testing.assert_array_equal(pixels(ready, "overlay"), coloured(mask, legend(ready)))


def test_the_value_under_the_pointer_is_that_of_the_mask(page, scene, mask):
    """Row, column, class and coordinates of pixels, among them one without data; rasterio says where they lie."""
    with rasterio.open(scene) as raster:
        place, crs = raster.xy, raster.crs.to_string()
    water, land, nothing = (tuple(int(each) for each in np.argwhere(mask == number)[1000]) for number in (1, 0, NODATA))
    for row, col in (water, land, nothing, (0, 511), (511, 511)):
        point_at(page, row, col, mask.shape)
        page.wait_for_selector("#at-place-part", state="visible")
        said = readout(page)
        assert said[:3] == [str(row), str(col), named(mask[row, col])]
        x, y = place(row, col)
        assert [float(each) for each in said[3].split(", ")] == pytest.approx([x, y])
    assert page.inner_text("#at-crs") == crs


def test_zoomed_and_moved_the_pointer_still_reads_its_pixel(page, mask):
    """The wheel enlarges at the pointer, dragging moves; pixels are where their colours are."""
    said = point_at(page, 300, 200, mask.shape)
    before = page.locator("#overlay").bounding_box()
    for _ in range(3):
        page.mouse.wheel(0, -240)
    page.wait_for_function(
        "width => document.getElementById('overlay').getBoundingClientRect().width > width", arg=7.5 * before["width"]
    )
    assert point_at(page, 300, 200, mask.shape) == said
    page.mouse.down()
    large = page.locator("#overlay").bounding_box()
    page.mouse.move(500, 300)
    page.mouse.move(520, 280)
    page.mouse.up()
    moved = page.locator("#overlay").bounding_box()
    assert (moved["x"], moved["y"]) != (large["x"], large["y"])
    for row, col in ((300, 200), (303, 205), (296, 190)):
        assert point_at(page, row, col, mask.shape)[:3] == [str(row), str(col), named(mask[row, col])]
    page.click("#zoom-fit")
    assert page.locator("#overlay").bounding_box() == pytest.approx(before)


def test_values_of_a_result_without_classes_come_from_the_server(ready):
    """Of probabilities the page asks for the pixel, and shows what the file has there."""
    run_anew(ready, output="confidence")
    content = httpx.get(f"{address(ready)}/v1/scenes/{current_job(ready)}/content").content
    with rasterio.MemoryFile(content) as file, file.open() as raster:
        values = raster.read(1)
    for row, col in ((200, 300), (400, 250)):
        point_at(ready, row, col, values.shape)
        ready.wait_for_function("() => /^[0-9.]+$/.test(document.getElementById('at-value').textContent)")
        said = readout(ready)
        assert said[:2] == [str(row), str(col)]
        assert float(said[2]) == pytest.approx(float(values[row, col]), rel=1e-5)


def test_the_download_is_the_result(page, scene, mask):
    """The saved file has the bytes that the server keeps, under the input's name, and lies on the input."""
    with page.expect_download() as download:
        page.click("#download")
    saved = download.value.path()
    assert download.value.suggested_filename == "scene-segmentation.tif"
    kept = httpx.get(f"{address(page)}/v1/scenes/{current_job(page)}/content").content
    assert saved.read_bytes() == kept
    with rasterio.open(saved) as made, rasterio.open(scene) as given_:
        np.testing.assert_array_equal(made.read(1), mask)
        assert (made.transform, made.crs) == (given_.transform, given_.crs)


def test_the_address_of_the_map_tiles_is_shown(page):
    """A map client finds the tiles of the result there."""
    pytest.importorskip("vllm_mmout.wings.map_tiles", reason="it serves the tiles")
    shown = page.input_value("#tiles")
    assert shown.startswith(f"{address(page)}/v1/images/results/")
    assert [row["name"] for row in httpx.get(shown).json()["classes"]] == ["land", "water"]
    assert page.locator("#tiles-part").is_visible()


def test_the_figure_is_saved(page):
    """The button saves the server's figure of the raster as PNG, under the input's name."""
    pytest.importorskip("matplotlib", reason="it draws the figure")
    with page.expect_download() as download:
        page.click("#figure")
    assert download.value.suggested_filename == "scene-segmentation-figure.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def rows_shown(page):
    """The table of a result that is data: a dict a row, as texts."""
    head, *rows = page.eval_on_selector_all(
        "#structured tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_data_is_shown_as_a_table(ready, mask):
    """Areas are rows, one a class, as JSON has them."""
    run_anew(ready, output="areas", output_format="json")
    counts = np.bincount(mask[mask != NODATA], minlength=2)
    rows = [(row["name"], int(row["pixels"])) for row in rows_shown(ready)]
    assert rows == list(zip(["land", "water"], counts, strict=True))
    assert ready.is_visible("#input")
    assert ready.is_hidden("#tiles-part")


def test_polygons_are_shown_on_the_map_and_as_rows(ready, mask):
    """The overlay has the classes that polygons were traced in, the table their properties; the file is GeoJSON."""
    run_anew(ready, output="polygons")
    np.testing.assert_array_equal(pixels(ready, "overlay"), coloured(mask, legend(ready)))
    features = httpx.get(f"{address(ready)}/v1/scenes/{current_job(ready)}/content").json()["features"]
    rows = rows_shown(ready)
    assert len(rows) == 100 < len(features)
    for row, feature in zip(rows, features, strict=False):
        assert {name: text for name, text in row.items() if name != "area_m2"} == {
            name: str(value) for name, value in feature["properties"].items() if name != "area_m2"
        }
    assert f"{len(features) - 100} more rows" in ready.inner_text("#structured")
    row, col = (int(each) for each in np.argwhere(mask == 1)[-1])
    assert point_at(ready, row, col, mask.shape)[2] == "water"
    with ready.expect_download() as download:
        ready.click("#download")
    assert download.value.suggested_filename == "scene-segmentation.geojson"
    assert not ready.is_visible("#figure")
