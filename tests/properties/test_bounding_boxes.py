"""Bounding boxes as windows, with rasterio, pyproj and shapely as the judges."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyproj import Transformer
from rasterio.transform import Affine
from rasterio.warp import transform_bounds
from rasterio.windows import from_bounds
from shapely import area as shapely_area
from shapely import box as shapely_box
from shapely import intersection, polygons

from vllm_mmout.geo import Georeference, Window
from vllm_mmout.geo.raster.bounding_box import window_of_box
from vllm_mmout.geo.raster.pixel_grid import ring

pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # rasterio's own use

SIZE = (40, 56)
TOLERANCE = 2e-3
"""Pixels by which the window of a box with curved edges may be too large."""


def at(transform: Affine, col, row):
    """Coordinates of places in pixels."""
    a, b, c, d, e, f = tuple(transform)[:6]
    return a * col + b * row + c, d * col + e * row + f


@cache
def from_longitudes(crs: str) -> Transformer:
    """Return the transformer from longitudes and latitudes to a system."""
    return Transformer.from_crs("EPSG:4326", crs, always_xy=True)


def window_in(transform: Affine, box: tuple[float, ...], crs: str | None = None, own: str = "EPSG:32614") -> Window:
    return window_of_box(box, crs, Georeference(own, tuple(transform)[:6]), SIZE, "scene.tif")


def corners(transform: Affine, window: Window) -> tuple[float, float, float, float]:
    """The box around the corners of a window."""
    places = [
        at(transform, col, row)
        for col in (window.col, window.col + window.width)
        for row in (window.row, window.row + window.height)
    ]
    x, y = zip(*places, strict=True)
    return min(x), min(y), max(x), max(y)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    row, col = draw(st.integers(0, SIZE[0] - 1)), draw(st.integers(0, SIZE[1] - 1))
    return Window(row, col, draw(st.integers(1, SIZE[0] - row)), draw(st.integers(1, SIZE[1] - col)))


sides = st.floats(1e-5, 1e4)
signs = st.sampled_from([-1, 1])
places = st.floats(-2e7, 2e7)


@given(windows(), sides, sides, signs, signs, places, places, st.booleans())
def test_the_box_of_a_window_is_that_window(window, width, height, right, down, x, y, turned) -> None:
    """Whatever the transform, mirrored or turned by a right angle: corners of pixels are found again."""
    transform = Affine(right * width, 0, x, 0, down * height, y)
    if turned:
        transform = Affine(0, right * width, x, down * height, 0, y)
    assume(min(width, height) > 1e3 * float(np.spacing(max(abs(x), abs(y)))))  # a pixel has digits of its own
    assert window_in(transform, corners(transform, window)) == window


@given(st.floats(0, 50), st.floats(0, 36), st.floats(0.01, 6), st.floats(0.01, 4), st.booleans())
def test_any_box_in_own_coordinates_is_rasterios_window_made_whole(left, top, width, height, south_up) -> None:
    """What rasterio cuts in parts of pixels is taken to the next whole pixel."""
    transform = Affine(10, 0, 5e5, 0, 10 if south_up else -10, 5e6)
    (x0, y0), (x1, y1) = at(transform, left, top), at(transform, left + width, top + height)
    box = (x0, min(y0, y1), x1, max(y0, y1))
    theirs = from_bounds(x0, y1, x1, y0, transform)  # bottom and top are those of the window
    edges = (theirs.col_off, theirs.row_off, theirs.col_off + theirs.width, theirs.row_off + theirs.height)
    assume(all(abs(edge - round(edge)) > 1e-5 for edge in edges))
    first_col, first_row, end_col, end_row = (*map(math.floor, edges[:2]), *map(math.ceil, edges[2:]))
    assert window_in(transform, box) == Window(first_row, first_col, end_row - first_row, end_col - first_col)


@settings(max_examples=50)
@given(st.floats(-180, 180), st.floats(-40, 40), st.floats(-40, 40), st.floats(0.1, 60), st.floats(0.1, 60))
def test_of_a_turned_raster_the_window_is_around_the_pixels_that_the_box_has(angle, x, y, width, height) -> None:
    """Shapely says which pixels overlap with the box; the window has them all, and none of its edges is without."""
    transform = Affine.rotation(angle) @ Affine.scale(1.0, -1.5)
    rows, cols = np.mgrid[: SIZE[0], : SIZE[1]].reshape(2, -1)
    shape = [
        np.stack(at(transform, cols + right, rows + down), axis=-1) for right, down in ((0, 0), (1, 0), (1, 1), (0, 1))
    ]
    overlap = intersection(polygons(np.stack(shape, axis=1)), shapely_box(x, y, x + width, y + height))
    area = shapely_area(overlap).reshape(SIZE)
    assume(area.max() > 1e-3)
    found = window_in(transform, (x, y, x + width, y + height))
    inside = area[found.rows, found.cols]
    assert (inside > 1e-4).sum() == (area > 1e-4).sum()
    assert all(edge.max() > 0 for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))


SYSTEMS = {
    "UTM in the north": ("EPSG:32632", Affine(3000, 0, 420000, 0, -3000, 5500000)),
    "UTM in the south": ("EPSG:32719", Affine(2500, 0, 430000, 0, -2500, 7000000)),
    "Lambert's equal area": ("EPSG:3035", Affine(20000, 0, 3800000, 0, -20000, 3600000)),
    "polar": ("EPSG:3031", Affine(20000, 0, -2300000, 0, -20000, 1400000)),
    "Mercator": ("EPSG:3857", Affine(5000, 0, 1000000, 0, -5000, 6200000)),
    "longitudes": ("EPSG:4258", Affine(0.1, 0, 9, 0, -0.1, 52)),
}


@pytest.mark.heavy
@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=30)
@given(st.data())
def test_a_box_in_longitudes_has_all_its_places_and_hardly_more(system, data) -> None:
    """The window is that of the curved edges, which rasterio follows in 5000 pieces; places within lie in it."""
    crs, transform = SYSTEMS[system]
    there = from_longitudes(crs)
    col, row = data.draw(st.floats(8, 40)), data.draw(st.floats(8, 26))
    right, down = data.draw(st.floats(0.2, 8)), data.draw(st.floats(0.2, 6))
    x, y = zip(at(transform, col, row), at(transform, col + right, row + down), strict=True)
    lon, lat = there.transform(x, y, direction="INVERSE")
    box = (min(lon), min(lat), max(lon), max(lat))
    assume(box[0] < box[2] and box[1] < box[3])
    theirs = from_bounds(*transform_bounds("EPSG:4326", crs, *box, densify_pts=5000), transform)
    low = np.array([theirs.row_off, theirs.col_off])
    high = np.add(low, (theirs.height, theirs.width))
    assume((low > 0).all() and (high < SIZE).all())
    found = window_in(transform, box, "EPSG:4326", crs)
    first, end = np.array([found.row, found.col]), np.array([found.row + found.height, found.col + found.width])
    assert (first <= np.floor(low + 1e-6)).all()
    assert (first >= np.floor(low - TOLERANCE)).all()
    assert (end >= np.ceil(high - 1e-6)).all()
    assert (end <= np.ceil(high + TOLERANCE)).all()
    share = np.random.default_rng(0).random((2, 200))
    x, y = there.transform(box[0] + share[0] * (box[2] - box[0]), box[1] + share[1] * (box[3] - box[1]))
    cols, rows = at(~transform, x, y)
    assert ((rows > first[0] - 1e-5) & (rows < end[0] + 1e-5)).all()
    assert ((cols > first[1] - 1e-5) & (cols < end[1] + 1e-5)).all()


EDGE = 20037508.342789244
WORLDS = {"EPSG:3857": 1024, "EPSG:3395": 700}
"""Mercator's maps of the whole Earth, in which the poles are infinitely far away, and their pixels on a side."""
latitudes = st.floats(-84, 84) | st.sampled_from([-90.0, -89.9, -86.0, 86.0, 89.9, 90.0])


@pytest.mark.parametrize("crs", WORLDS)
@settings(max_examples=60)
@given(st.floats(-180, 179), st.floats(0.5, 300), latitudes, latitudes)
def test_a_box_that_reaches_a_pole_has_no_more_of_mercators_map(crs, west, wide, south, north) -> None:
    """Edges lie along rows and columns: the window is between the places that pyproj gives of two corners."""
    east = min(west + wide, 180.0)
    south, north = min(south, north), max(south, north)
    assume(north - south > 0.5 and north > -84 and south < 84)
    size = WORLDS[crs]
    pixel = 2 * EDGE / size
    place = Georeference(crs, (pixel, 0, -EDGE, 0, -pixel, EDGE))
    found = window_of_box((west, south, east, north), "EPSG:4326", place, (size, size), "world.tif")
    there = from_longitudes(crs)
    (left, right), (lower, upper) = there.transform([west, east], [south, north])
    edges = np.clip([(left + EDGE) / pixel, (EDGE - upper) / pixel, (right + EDGE) / pixel, (EDGE - lower) / pixel],
                    0, size)  # fmt: skip
    first_col, first_row, end_col, end_row = (*np.floor(edges[:2]), *np.ceil(edges[2:]))
    near_a_border = np.abs(edges - np.round(edges)) < TOLERANCE
    assume(not (near_a_border & (edges > 0) & (edges < size)).any())
    assert found == Window(int(first_row), int(first_col), int(end_row - first_row), int(end_col - first_col))


MAPS = {
    "Mercator": ("EPSG:3857", (4e5, 0, -EDGE, 0, -4e5, EDGE), (100, 100)),
    "Lambert's cone": ("EPSG:3978", (1e5, 0, -3e6, 0, -1e5, 5e6), (60, 60)),
    "polar": ("EPSG:3995", (1e5, 0, -4e6, 0, -1e5, 4e6), (80, 80)),
    "equal area": ("EPSG:3035", (1e5, 0, 0, 0, -1e5, 7e6), (70, 70)),
}


CUT = {"Lambert's cone": 85.0}
"""Longitude along which a map is cut open; a box across it has two parts, and its window is larger than they are."""


@cache
def quarters_of_pixels(name):
    """Return places of a map: rows, columns, longitudes, latitudes, and whether the map shows them."""
    crs, transform, size = MAPS[name]
    there = from_longitudes(crs)
    rows, cols = np.mgrid[: 4 * size[0] + 1, : 4 * size[1] + 1].reshape(2, -1) / 4
    x, y = at(transform, cols, rows)
    lon, lat = there.transform(x, y, direction="INVERSE")
    real = np.hypot(*np.subtract(there.transform(lon, lat), (x, y))) < 1  # a cone is cut open, with nothing in between
    return rows, cols, lon, lat, real


@pytest.mark.heavy
@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=25)
@given(st.floats(-179, 150), st.floats(25, 100), st.floats(-80, 80), st.floats(8, 170))
def test_the_window_of_a_box_has_the_pixels_whose_places_are_in_it(name, west, wide, south, high) -> None:
    """The raster's places are asked for their longitudes, and the box's edges for theirs; boxes may reach the pole."""
    crs, transform, size = MAPS[name]
    box = (west, south, min(west + wide, 180.0), min(south + high, 90.0))
    assume(not west <= CUT.get(name, 180.0) < box[2])
    there = from_longitudes(crs)
    rows, cols, lon, lat, real = quarters_of_pixels(name)
    inside = real & (lon >= box[0]) & (lon <= box[2]) & (lat >= box[1]) & (lat <= box[3])
    assume(inside.any())
    edges = there.transform(*ring(box, 2000))
    edges = at(~Affine(*transform), *np.clip(edges, -1e12, 1e12))
    within = np.all([(edge >= 0) & (edge <= side) for edge, side in zip(edges, size[::-1], strict=True)], axis=0)
    found = window_of_box(box, "EPSG:4326", Georeference(crs, transform), size, "map.tif")
    for places, edge, first, end in (
        (rows, edges[1], found.row, found.row + found.height),
        (cols, edges[0], found.col, found.col + found.width),
    ):
        touched = np.concatenate([places[inside], edge[within]])
        low, last = math.floor(touched.min() + TOLERANCE), math.ceil(touched.max() - TOLERANCE)
        assert low - 1 <= first <= low
        assert last <= end <= last + 1
