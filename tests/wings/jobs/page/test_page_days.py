"""Scenes of two days in the page: a map of each day, chosen by its day."""

from __future__ import annotations

import pytest
from browsing import finished, given
from scenes_for_tests import pixels, write

rasterio = pytest.importorskip("rasterio", reason="inputs are written by rasterio")

pytestmark = pytest.mark.engine
DAYS = ["2024-05-01", "2024-06-03"]


def test_a_map_of_each_day_is_chosen_by_its_day(visit, page_server, tmp_path):
    """The list of results names the days, and the download and the commands for curl are those of a day."""
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(30, 0, 730_000, 0, -30, 5_099_000)}
    scenes = [write(tmp_path / f"a_{day}.tif", pixels(seed, 40, 50), **place) for seed, day in enumerate(DAYS)]
    page = visit(page_server)
    given(page, *scenes)
    page.select_option("#files-are", "scenes")
    page.wait_for_selector("#run:enabled", state="visible")
    page.select_option("#each-day", "true")
    page.click("#run")
    finished(page)
    names = page.locator("#which option").all_inner_texts()
    assert [name.rpartition(", ")[2] for name in names] == DAYS
    page.select_option("#which", "1")
    page.wait_for_function(f"() => document.querySelector('#download').title.startsWith('{DAYS[1]}-')")
    curl = page.text_content("#curl")
    assert "each_day=true" in curl
    assert [f"&day={day}" in curl for day in DAYS] == [True, True]
