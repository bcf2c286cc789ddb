"""Tiles of any scene: all is covered, weights sum to one, and what is joined is what was cut."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from tiles_for_tests import joined, parts_of, pieces, pixels, same_bits, shuffled

from vllm_mmout.geo import TileGrid, axis_weights
from vllm_mmout.geo.tiling.grid import Axis
from vllm_mmout.outputs import RasterOutput

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
quick = settings(max_examples=60, deadline=None)
BLENDS = st.sampled_from(["linear", "cosine", "none"])
ODD = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4e38, -9999.0], "float32")


@st.composite
def grids(draw: st.DrawFn, overlap: int = 0, long: bool = True) -> TileGrid:  # noqa: FBT001, FBT002 - of a test
    """Grids of small scenes of up to six tiles along an axis; some are longer than a block of the file."""
    stretched = long and draw(st.integers(0, 4)) == 0
    tile = draw(st.integers(150, 300)) if stretched else draw(st.integers(max(1, 2 * overlap), 24 + 2 * overlap))
    shared = draw(st.integers(overlap, tile // 2))
    sizes = st.integers(1, 5 * (tile - shared))
    height, width = draw(sizes), draw(sizes)
    if stretched:
        height, width = draw(st.permutations([draw(st.integers(513, 1100)), draw(st.integers(1, 9))]))
    return TileGrid(height, width, tile, shared, draw(st.sampled_from(["shift", "pad"])))


def whole_weights(grid: TileGrid, blend: str) -> list[np.ndarray]:
    """The weights of each tile, laid out over the whole scene."""
    axes = [
        axis_weights(starts, grid.tile, size, blend)
        for starts, size in ((grid.rows, grid.height), (grid.cols, grid.width))
    ]
    laid = []
    for index in range(len(grid)):
        row, col = divmod(index, len(grid.cols))
        window = grid.window(index)
        weight = np.zeros((grid.height, grid.width))
        weight[window.rows, window.cols] = axes[0][row][:, None] * axes[1][col]
        laid.append(weight)
    return laid


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Numbers of a dtype, odd ones among those of floating point."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        return random.integers(0, 2 if dtype == "bool" else np.iinfo(dtype).max, shape, dtype, endpoint=dtype != "bool")
    numbers = random.normal(0, 1000, shape).astype(dtype)
    odd = random.random(shape) < 0.1
    with np.errstate(over="ignore"):
        numbers[odd] = random.choice(ODD.astype(dtype), int(odd.sum()))
    return numbers


@quick
@given(grids(), BLENDS)
def test_weights_sum_to_one_at_every_pixel(grid, blend):
    """Every pixel lies in a tile, and what tiles count there sums to one; with "none" it is one tile's."""
    laid = whole_weights(grid, blend)
    np.testing.assert_allclose(sum(laid), 1, rtol=1e-12)
    assert all((weight >= 0).all() for weight in laid)
    if blend == "none":
        assert set(np.unique(np.concatenate(laid))) <= {0.0, 1.0}


@quick
@given(grids(), BLENDS)
def test_intervals_are_where_tiles_count(grid, blend):
    """The intervals of an axis follow on one another, and in each all tiles said to count have positive weights."""
    axis = Axis.cut(grid.rows, grid.tile, grid.height, blend)
    counted = np.zeros(grid.height, int)
    for number, (start, weight) in enumerate(zip(axis.starts, axis.weights, strict=True)):
        for interval in axis.spans[number]:
            assert (axis.weights[number][axis.within(number, interval)] > 0).all()
        counted[start : start + len(weight)] += weight > 0
    assert [interval.start for interval in axis.intervals] == [0, *(one.stop for one in axis.intervals[:-1])]
    assert axis.intervals[-1].stop == grid.height
    for interval, cover in zip(axis.intervals, axis.covers, strict=True):
        assert (counted[interval] == cover).all()


@quick
@given(
    grids(),
    BLENDS,
    st.sampled_from(["float32", "float64", "float16", "uint8", "int16", "uint32", "bool"]),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_cutting_and_joining_is_the_identity(grid, blend, dtype, bands, seed):
    """Tiles joined without a model are the scene, to the last bit, in whatever order they come.

    But for the sign of zeros, since GDAL leaves out blocks that hold nothing else, and for several bands of float16,
    which are written as float32.
    """
    scene = values((bands, grid.height, grid.width), dtype, seed)
    scene[scene == 0] = 0
    if dtype == "float16" and bands > 1:
        scene = scene.astype("float32")
    got = pixels(shuffled(parts_of(pieces(scene, grid), grid), seed), grid, blend)
    assert same_bits(got, scene.view("uint8") if dtype == "bool" else scene)


@pytest.mark.heavy
@quick
@given(grids(), BLENDS, st.integers(0, 2**32))
def test_the_order_of_tiles_makes_no_difference(grid, blend, seed):
    """Tiles that contradict each other give the same bits in any order, finished to something else or not."""
    random = np.random.default_rng(seed)
    side = (min(grid.tile, grid.height), min(grid.tile, grid.width)) if grid.edge == "shift" else (grid.tile, grid.tile)
    outputs = [values((2, *side), "float32", int(random.integers(2**32))) for _ in range(len(grid))]
    valid = random.random((grid.height, grid.width)) < 0.8
    empty = random.integers(0, len(grid), len(grid) // 3)
    outputs = [None if index in empty and len(grid) > 1 else output for index, output in enumerate(outputs)]
    if all(output is None for output in outputs):
        return

    def finish(joined: RasterOutput) -> RasterOutput:
        return RasterOutput((joined.array > 0).sum(axis=0, dtype="uint8")[None], nodata=9)

    parts = parts_of(outputs, grid, valid)
    for step in (None, finish):
        first = pixels(parts, grid, blend, finish=step)
        assert same_bits(first, pixels(shuffled(parts, seed), grid, blend, finish=step))
        assert same_bits(first, pixels(parts[::-1], grid, blend, finish=step))
        missing = np.isnan(first[0]) if step is None else first[0] == 9
        assert missing[~valid].all()


@quick
@given(grids(), st.sampled_from(["linear", "cosine"]), st.integers(0, 2**32))
def test_the_mean_is_the_weighted_mean(grid, blend, seed):
    """Joined values are numpy's weighted average of what is known, over whole arrays; nothing is blended unasked."""
    random = np.random.default_rng(seed)
    side = (min(grid.tile, grid.height), min(grid.tile, grid.width)) if grid.edge == "shift" else (grid.tile, grid.tile)
    outputs = random.normal(0, 1, (len(grid), 1, *side)).astype("float32")
    outputs[random.random(outputs.shape) < 0.1] = np.nan
    outputs[random.random(outputs.shape) < 0.1] = -9999
    total, count = np.zeros((2, grid.height, grid.width))
    for index, weight in enumerate(whole_weights(grid, blend if grid.overlap else "none")):
        window = grid.window(index)
        here = outputs[index, 0, : window.height, : window.width].astype("float64")
        known = np.isfinite(here) & (here != -9999)
        total[window.rows, window.cols] += np.where(known, here, 0) * weight[window.rows, window.cols]
        count[window.rows, window.cols] += np.where(known, weight[window.rows, window.cols], 0)
    got = pixels(shuffled(parts_of(outputs, grid, nodata=-9999.0), seed), grid, blend)[0]
    known = count > 0
    np.testing.assert_allclose(got[known], total[known] / count[known], rtol=1e-5, atol=1e-6)
    assert (np.isnan(got[~known]) | (got[~known] == -9999)).all()


def box_mean(array: np.ndarray, radius: int) -> np.ndarray:
    """A model that sees ``radius`` pixels around each, and zeros beyond its input's edge."""
    padded = np.pad(array.astype("float64"), ((0, 0), (radius, radius), (radius, radius)))
    side = 2 * radius + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    return windows.mean(axis=(-2, -1)).astype("float32")


@quick
@given(st.data(), st.integers(0, 3), BLENDS, st.integers(0, 2**32))
def test_a_model_with_a_small_field_of_view_gives_what_it_gives_whole(data, radius, blend, seed):
    """Tiled equals whole where the overlap is twice the radius with "none", four times with a ramp."""
    grid = data.draw(grids((2 if blend == "none" else 4) * radius, long=False))
    grid = TileGrid(grid.height, grid.width, grid.tile, grid.overlap)  # padding is not what the whole model sees there
    scene = np.random.default_rng(seed).normal(0, 1, (1, grid.height, grid.width)).astype("float32")
    tiled = pixels(parts_of([box_mean(tile, radius) for tile in pieces(scene, grid)], grid), grid, blend)
    np.testing.assert_allclose(tiled, box_mean(scene, radius), rtol=0, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from([(2, 1), (4, 1), (1, 2), (1, 4)]), BLENDS, st.booleans())
def test_outputs_of_another_size_cover_the_same_extent(tmp_path_factory, rows, cols, scale, blend, pad):
    """Tiles with more or fewer pixels than they were fed are joined where they lie, as rasterio reads it."""
    more, less = scale
    grid = TileGrid(4 * rows, 4 * cols, 16, 8, "pad" if pad else "shift")
    scene = np.random.default_rng(rows).normal(0, 1, (1, grid.height * more, grid.width * more)).astype("float32")
    scene = scene[:, ::less, ::less]
    outputs = []
    for index in range(len(grid)):
        window, padding = grid.window(index), grid.padding(index)
        here = scene[
            :,
            window.row * more // less : (window.row + window.height) * more // less,
            window.col * more // less : (window.col + window.width) * more // less,
        ]
        outputs.append(np.pad(here, [(0, 0), *((0, more * pixels // less) for pixels in padding)]))
    path = tmp_path_factory.mktemp("scaled") / "joined.tif"
    joined(parts_of(outputs, grid), grid, blend).save(path)
    with rasterio.open(path) as file:
        assert same_bits(file.read(), scene)
