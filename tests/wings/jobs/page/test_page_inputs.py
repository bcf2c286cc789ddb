"""Inputs in the page: how they are drawn, parts of them, several files, and those that are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from browsing import coloured, drop, fill, given, legend, named, paste, pixels, point_at, run_anew
from PIL import Image

rasterio = pytest.importorskip("rasterio", reason="inputs are written by rasterio")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def page(same_page):
    """The same page for all tests; each gives it its input."""
    return same_page


def test_the_input_is_drawn_as_its_bands_are(page, scene, embedded):
    """A band in grey between its least and greatest value, transparent beyond the swath; numpy says how bright."""
    given(page, scene)
    page.click("#picture summary")
    page.select_option("#mode", "grey")
    page.select_option("#band-grey", label="4 narrow NIR")
    page.select_option("#stretch", "range")
    drawn = pixels(page, "input")
    band = embedded.array[3].astype(float)
    valid = embedded.array[3] != embedded.nodata
    low, high = band[valid].min(), band[valid].max()
    expected = np.rint((band - low) * 255 / (high - low))
    np.testing.assert_array_equal(drawn[..., 3] == 255, valid)
    assert np.abs(drawn[valid][:, :3] - expected[valid][:, None]).max() <= 1
    page.select_option("#mode", "colour")
    page.select_option("#limits", "common")
    low, high = (end(embedded.array[:3][:, valid]) for end in (np.min, np.max))
    red = np.rint((embedded.array[2].astype(float) - low) * 255 / (high - low))
    assert np.abs(pixels(page, "input")[valid][:, 0] - red[valid]).max() <= 1


def test_a_part_of_the_input_is_shown_where_it_lies(page, scene, mask):
    """With a window the overlay covers that part alone, and counts rows and columns in the result."""
    given(page, scene)
    run_anew(page, window="100,50,200,300")
    part = mask[100:300, 50:350]
    np.testing.assert_array_equal(pixels(page, "overlay"), coloured(part, legend(page)))
    over, under = (page.locator(f"#{name}").bounding_box() for name in ("overlay", "input"))
    scale = under["width"] / 512
    assert [over["x"] - under["x"], over["y"] - under["y"]] == pytest.approx([50 * scale, 100 * scale], abs=0.5)
    assert [over["width"], over["height"]] == pytest.approx([300 * scale, 200 * scale], abs=0.5)
    assert point_at(page, 7, 9, part.shape)[:3] == ["7", "9", named(part[7, 9])]


def test_several_files_are_one_input(page, embedded, mask, tmp_path):
    """A file a band, put in the order of their names."""
    files = []
    for number, band in enumerate(embedded.array, 1):
        files.append(tmp_path / f"part{number}.tif")
        profile = {"count": 1, "height": 512, "width": 512, "dtype": "int16", "nodata": embedded.nodata}
        place = {"crs": embedded.crs, "transform": rasterio.Affine(10, 0, 562_340, 0, -10, 4_990_280)}
        with rasterio.open(files[-1], "w", driver="GTiff", **profile, **place) as file:
            file.write(band, 1)
    given(page, *reversed(files))
    assert "6 bands" in page.inner_text("#input-facts")
    run_anew(page)
    np.testing.assert_array_equal(pixels(page, "overlay"), coloured(mask, legend(page)))


def test_a_picture_is_pasted_and_shown_as_it_is(page, tmp_path):
    """A picture of eight bits keeps its colours; that the model takes no such picture is said when it is run."""
    path = tmp_path / "photo.png"
    colours = np.random.default_rng(7).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(colours).save(path)
    given(page, path, by=paste)
    assert page.inner_text("#input-name") == "photo.png"
    np.testing.assert_array_equal(pixels(page, "input")[..., :3], colours)
    page.click("#run")
    page.wait_for_selector("#notice", state="visible")
    assert "takes 6" in page.inner_text("#error")


def test_a_broken_file_is_an_error_in_words_and_a_good_one_works_after_it(visit, page_server, scene, tmp_path):
    """What cannot be read is said with the file's name in a region that screen readers announce."""
    page = visit(page_server)
    broken = tmp_path / "broken.tif"
    broken.write_bytes(b"II*\0" + b"no tiff" * 20)
    drop(page, broken)
    page.wait_for_selector("#notice", state="visible")
    alert = page.get_by_role("alert").filter(has_text="broken.tif")
    assert len(alert.inner_text()) > len("broken.tif: ")
    assert page.is_disabled("#run")
    given(page, scene)
    assert page.is_hidden("#notice")
    run_anew(page, window="0,0,64,64")


def test_a_wrong_option_is_pointed_at(page, scene):
    """The field that the server's error names has the focus; mended, the request runs."""
    given(page, scene)
    fill(page, window="1,2,3")
    page.click("#run")
    page.wait_for_selector("#notice", state="visible")
    assert "window" in page.inner_text("#error")
    assert page.evaluate("() => document.activeElement.name") == "window"
    run_anew(page, window="0,0,64,64")
    assert page.is_hidden("#notice")
