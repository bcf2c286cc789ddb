"""Simplified polygons: fewer corners, shared borders."""

from __future__ import annotations

import numpy as np
import pytest

shapely = pytest.importorskip("shapely", reason="the oracle is shapely")

from traced import blobs, traced  # noqa: E402 - needs it

CLASSES = blobs(200, 30)


def corners(found):
    """How many there are."""
    return int(shapely.get_num_coordinates([one for one, *_ in found]).sum())


@pytest.mark.heavy
@pytest.mark.parametrize(("tolerance", "band"), [(0.3, None), (0.8, 11), (1.5, None), (2.5, 11)])
def test_polygons_of_a_map_stay_a_map(tolerance, band):
    """Without gaps and overlaps, by GEOS; every border lies near the old one."""
    plain, found = traced(CLASSES), traced(CLASSES, simplify=tolerance, band=band)
    shapes = [one for one, *_ in found]
    assert all(one.is_valid for one in shapes)
    assert shapely.coverage_is_valid(shapes)
    assert shapely.union_all(shapes).equals(shapely.box(0, 0, 200, 200))
    assert sum(one.area for one in shapes) == pytest.approx(CLASSES.size)
    of = sorted(found, key=lambda one: (one[1:3], one[0].bounds))
    assert [one[1:3] for one in of] == sorted(one[1:3] for one in plain)
    near = shapely.union_all([one.boundary for one, *_ in plain]).buffer(tolerance + 1e-6)
    assert all(near.covers(one.boundary) for one in shapes)
    if tolerance >= 0.8:
        assert corners(found) < corners(plain) / 2


@pytest.mark.heavy
def test_bands_make_no_difference():
    """The same polygons whatever the height of a band."""
    expected = sorted(one.normalize().wkt for one, *_ in traced(CLASSES, simplify=1))
    for band in (1, 13, 100):
        assert sorted(one.normalize().wkt for one, *_ in traced(CLASSES, simplify=1, band=band)) == expected


def test_small_regions_keep_an_area():
    """A pixel, a pair and a diagonal stair stay, however far borders may move; so does the raster's corner."""
    classes = np.zeros((12, 12), np.int32)
    classes[2, 2] = classes[5, 5:7] = 1
    classes[8, 2:4] = classes[9, 3:5] = classes[10, 4:6] = 2
    classes[0, 11] = 3
    found = traced(classes, simplify=5)
    assert sorted(number for _, number, *_ in found) == [0, 1, 1, 2, 3]
    assert all(one.area > 0 and one.is_valid for one, *_ in found)
    assert shapely.coverage_is_valid([one for one, *_ in found])
    assert shapely.Point(12, 0).touches(next(one for one, number, *_ in found if number == 3))


def test_the_corners_of_the_raster_stay():
    """Also where a region has little more than the corner."""
    rows, cols = np.indices((12, 12))
    ((polygon, *_),) = traced(np.where(abs(rows + cols - 11) <= 1, 0, -1), simplify=2)
    assert {(12, 0), (0, 12)} < set(polygon.exterior.coords)
    assert len(polygon.exterior.coords) < 8


def test_no_ring_turns_over():
    """However far borders may move, exteriors enclose their region, and holes lie on its other side."""
    for seed, grain in ((33, 10), (1, 6)):
        for tolerance in (10, 30):
            found = traced(blobs(60, grain, seed, (-0.5, 0, 0.5)), simplify=tolerance)
            # Rows count downwards: exteriors run clockwise in columns and rows.
            assert all(signed_area(one.exterior) < 0 for one, *_ in found)
            assert all(signed_area(hole) > 0 for one, *_ in found for hole in one.interiors)


def signed_area(ring):
    """Positive where a ring runs counterclockwise, all in all: it may cross itself."""
    x, y = np.array(ring.coords).T
    return (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2


def test_no_tolerance_keeps_all():
    """Zero is the same as none."""
    assert corners(traced(CLASSES, simplify=0)) == corners(traced(CLASSES))
