"""Polygons of random rasters of classes, with GDAL (rasterio) and GEOS (shapely) as the judges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

pytest.importorskip("rasterio", reason="the oracle is rasterio")
shapely = pytest.importorskip("shapely", reason="the oracle is shapely")

from traced import by_rasterio, rasterised, traced  # noqa: E402 - needs both

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
SIZES = st.tuples(st.integers(1, 14), st.integers(1, 14))
BANDS = st.sampled_from([1, 2, 3, 5, 20])


@st.composite
def rasters(draw):
    """int32 [height, width] of up to four classes; -1 is none. Noise, or the same in larger pixels."""
    numbers = st.integers(-1, draw(st.integers(0, 3)))
    classes = draw(npst.arrays(np.int32, draw(SIZES), elements=numbers, fill=st.nothing()))
    return np.kron(classes, np.ones(draw(st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 1)])), np.int32))


def normal(polygon):
    """A polygon in a form in which equal ones are the same text."""
    return polygon.normalize().wkt


@settings(max_examples=300)
@given(classes=rasters(), band=BANDS, budget=st.sampled_from([1, 2**25]), junctions=st.booleans())
def test_polygons_are_those_of_gdal(classes, band, budget, junctions):
    """Corner for corner, whatever the height of a band; with a tolerance of next to nothing the same areas."""
    expected = by_rasterio(classes)
    found = traced(classes, band=band, budget=budget, simplify=1e-9 if junctions else 0)
    if not junctions:
        assert sorted((normal(one), number) for one, number, *_ in found) == sorted(
            (normal(one), number) for one, number in expected
        )
    pairs = [(one, number) for one, number, *_ in found]
    np.testing.assert_array_equal(rasterised(pairs, classes.shape), classes)
    assert all(one.is_valid for one, _ in pairs)
    assert [one.area for one, _ in pairs] == [pixels for *_, pixels, _ in found] == [area for *_, area in found]


@settings(max_examples=100)
@given(classes=rasters(), band=BANDS, simplify=st.floats(0.1, 4))
def test_simplified_polygons_share_their_borders(classes, band, simplify):
    """Of a raster without gaps each stretch of border is that of two polygons, or lies on the raster's edge."""
    found = traced(np.maximum(classes, 0), band=band, simplify=simplify)
    alone = set()
    for polygon, _, pixels, _ in found:
        for ring in (polygon.exterior, *polygon.interiors):
            assert shapely.Polygon(ring).area > 0
            alone ^= {(one, other) if one < other else (other, one) for one, other in segments(ring)}
        assert pixels > 0
    kept = sum(polygon.area for polygon, *_ in found)
    height, width = classes.shape
    if all(on_edge(one, other, height, width) for one, other in alone):
        assert kept == pytest.approx(height * width)
    else:  # where a ring had to stay as it was: those that have an unsimplified neighbour
        assert simplify > 0.5


def segments(ring):
    """The stretches of a ring."""
    corners = list(ring.coords)
    return itertools.pairwise(corners)


def on_edge(one, other, height, width):
    """Whether a stretch lies on the edge of the raster."""
    return any(
        one[axis] == other[axis] == edge for axis, edges in ((0, (0, width)), (1, (0, height))) for edge in edges
    )
