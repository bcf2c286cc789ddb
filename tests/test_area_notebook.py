"""The notebook ``examples/area_and_date.ipynb`` runs as it stands, from a STAC search to a map, figure and areas."""

from __future__ import annotations

import csv
import os
import re

import numpy as np
import pytest
from notebooks import EXAMPLES, cells_of, picture_of, printed, run_notebook
from synthetic_catalogue import BROKEN, ITEMS

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytest.importorskip("pystac")
pytest.importorskip("shapely")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.engine, pytest.mark.slow]
IN_JUNE = sorted((day, name) for name, (_, _, day) in ITEMS.items() if day.startswith("2024-06"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which the notebook ran."""
    place = tmp_path_factory.mktemp("area-notebook")
    path = os.pathsep.join([str(EXAMPLES.parent / "scripts"), os.environ.get("PYTHONPATH", "")])
    run_notebook(EXAMPLES / "area_and_date.ipynb", place, tmp_path_factory.mktemp("jupyter"), PYTHONPATH=path)
    return place


@pytest.fixture(scope="module")
def cells(place):
    """The cells with what they gave."""
    return cells_of(place / "ran.ipynb")


@pytest.fixture(scope="module")
def saved(place):
    """The saved map: its classes, its colours, and the square metres of a pixel."""
    with rasterio.open(place / "report/june-classes.tif") as file:
        return file.read(1), file.colormap(1), abs(file.transform.a * file.transform.e)


def test_lists_the_items_and_names_the_one_that_is_left_out(cells):
    """The search lists the items of June with their dates. The map leaves the broken item out, and says so."""
    lines = [line.split() for line in printed(cells["search"]).splitlines()]
    assert [(date, name) for date, name, *_ in lines] == IN_JUNE
    assert {code for *_, code in lines} == {"EPSG:32632", "EPSG:32633"}
    assert printed(cells["engine"]) == f"{BROKEN} was left out of the mosaic\n"


def test_shows_the_map(cells, saved):
    """The result's picture has the colours of the classes in the saved map, and is clear outside of the area."""
    classes, colours, _ = saved
    picture, _ = picture_of(cells["engine"])
    assert {*np.unique(classes)} == {0, 1, 255}
    for value in (0, 1):
        assert {tuple(pixel) for pixel in picture[classes == value].tolist()} == {colours[value]}
    assert not picture[classes == 255][:, 3].any()


def test_shows_the_figure(cells):
    """The figure has both colours in its legend, white around them, and the scenes below the classes."""
    picture, _ = picture_of(cells["figure"])
    colours, counts = np.unique(picture[..., :3].reshape(-1, 3), axis=0, return_counts=True)
    pixels = dict(zip(map(tuple, colours.tolist()), counts.tolist(), strict=True))
    assert min(pixels.get(colour, 0) for colour in ((217, 207, 180), (0, 114, 178))) > 50
    assert pixels[255, 255, 255] > 0.02 * counts.sum()
    assert len(pixels) > 2000, len(pixels)  # of two classes alone there are some hundred


def test_says_the_areas_of_the_saved_table(cells, place, saved):
    """Square kilometres of water are those of the CSV, which add up to those of the saved map."""
    classes, _, square = saved
    said = dict(re.findall(r"^(\w+): ([\d.]+) km² of water", printed(cells["areas"]), flags=re.MULTILINE))
    with (place / "report/june-areas.csv").open(encoding="utf-8") as table:
        rows = [row for row in csv.DictReader(table) if row["name"] == "water"]
    assert said == {row["feature"]: f"{float(row['area_m2']) / 1e6:.2f}" for row in rows}
    assert sum(int(row["pixels"]) for row in rows) * square == (classes == 1).sum() * square


def test_catalogues_the_map(cells):
    """The item has the first and the last date, and links to the items of the map."""
    first, *origins = printed(cells["stac"]).splitlines()
    assert first == "june-classes 2024-06-03T10:00:00Z 2024-06-13T10:00:00Z"
    assert origins == sorted(f"{name}.json" for _, name in IN_JUNE if name != BROKEN)


def test_is_quiet(cells):
    """No cell has an error, and only the list of items is longer than six lines."""
    assert not [output for cell in cells.values() for output in cell["outputs"] if output["output_type"] == "error"]
    assert all(printed(cell, "stderr").count("\n") <= 2 for cell in cells.values())
