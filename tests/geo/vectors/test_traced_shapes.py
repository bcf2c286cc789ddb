"""Tracing of shapes that are hard: spirals, checkerboards, holes in islands in holes, and large rasters."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytest.importorskip("shapely", reason="the oracle is shapely")

from traced import blobs, by_rasterio, rasterised, traced

from vllm_mmout.geo.vectors import trace

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
BANDS = [1, 2, 3, 7, 64, None]


def spiral(size):
    """A path of class 1, one pixel wide, that winds inwards in class 0."""
    grid = np.zeros((size, size), np.int32)
    row, col, step = 0, 0, (0, 1)
    while True:
        grid[row, col] = 1
        for _ in range(2):
            ahead = row + step[0], col + step[1]
            beyond = row + 2 * step[0], col + 2 * step[1]
            inside = 0 <= ahead[0] < size and 0 <= ahead[1] < size
            free = not (0 <= beyond[0] < size and 0 <= beyond[1] < size) or not grid[beyond]
            if inside and not grid[ahead] and free:
                break
            step = (step[1], -step[0])
        else:
            return grid
        row, col = ahead


def nested(size):
    """Squares within squares: each is a hole of one class and an island of another."""
    rows, cols = np.indices((size, size))
    return (np.minimum.reduce([rows, cols, size - 1 - rows, size - 1 - cols]) % 3).astype(np.int32) - 1


SHAPES = {
    "a spiral": spiral(33),
    "a checkerboard": np.indices((17, 20)).sum(axis=0).astype(np.int32) % 2,
    "a checkerboard with nothing between": np.indices((17, 20)).sum(axis=0).astype(np.int32) % 2 - 1,
    "squares in squares": nested(29),
    "stripes": np.indices((20, 17))[1].astype(np.int32) % 3,
    "one class": np.full((9, 13), 4, np.int32),
    "one pixel": np.full((1, 1), 7, np.int32),
    "one row": np.array([[0, 0, 1, -1, 1]], np.int32),
    "a ring that touches itself": np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], np.int32),
    "rings in a diagonal": 1 - np.eye(12, dtype=np.int32),
    "noise": np.random.default_rng(3).integers(-1, 2, (60, 75)).astype(np.int32),
    "islands": blobs(150, 12),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("band", BANDS)
def test_polygons_of_hard_shapes_are_gdals(name, band):
    """Corner for corner, valid, exteriors to the left and holes to the right."""
    classes = SHAPES[name]
    found = traced(classes, band=band, budget=1)
    assert sorted((one.normalize().wkt, number) for one, number, *_ in found) == sorted(
        (one.normalize().wkt, number) for one, number in by_rasterio(classes)
    )
    assert all(one.is_valid and one.area == pixels for one, _, pixels, _ in found)
    # Rows count downwards: what is counterclockwise as a picture is seen is clockwise in columns and rows.
    assert not any(one.exterior.is_ccw for one, *_ in found)
    assert all(hole.is_ccw for one, *_ in found for hole in one.interiors)


def test_nothing_has_no_polygons():
    """A raster of nodata alone has no region."""
    assert traced(np.full((5, 6), -1, np.int32), band=2) == []
    assert traced(np.full((5, 6), 9, np.uint8), nodata=9) == []


@pytest.mark.parametrize("block", [1, 50, 400])
def test_large_polygons_come_in_pieces(block, monkeypatch):
    """A polygon whose rings are handed over in several pieces is the same polygon."""
    monkeypatch.setattr(trace, "BLOCK", block)
    classes = SHAPES["islands"]
    found = traced(classes, band=16, budget=1)
    np.testing.assert_array_equal(rasterised([one[:2] for one in found], classes.shape), classes)
    assert len(found) == len(by_rasterio(classes))


def test_areas_are_summed_by_rows():
    """Each pixel counts what a pixel of its row counts."""
    classes = SHAPES["noise"]
    areas = np.random.default_rng(4).random(len(classes))
    found = traced(classes, band=7, areas=areas)
    for number in (0, 1):
        expected = ((classes == number) * areas[:, np.newaxis]).sum()
        assert sum(area for _, of, _, area in found if of == number) == pytest.approx(expected)
        assert sum(pixels for _, of, pixels, _ in found if of == number) == (classes == number).sum()
    for polygon, _, _, area in found[:20]:
        mask = rasterised([(polygon, 1)], classes.shape) == 1
        assert area == pytest.approx((mask * areas[:, np.newaxis]).sum())


def test_nothing_is_kept_of_what_was_given_out():
    """When the last row has come no border, ring, segment or corner waits any more."""
    from vllm_mmout.geo.vectors.corner_store import WaitingCorners

    classes = SHAPES["noise"]
    with WaitingCorners(1) as waiting:
        tracer = trace.Tracer(classes.shape, waiting)
        for row in range(0, len(classes), 4):
            for _ in tracer.add(classes[row : row + 4]):
                pass
        assert not len(tracer._open.heads)
        assert not len(tracer._rings.region)
        assert not len(tracer._regions.classes)
        assert sorted(tracer._segments._free.tolist()) == list(range(tracer._segments._unused))
        assert len(waiting._unread) <= 1
