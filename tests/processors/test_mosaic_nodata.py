"""Nodata of joined tiles: where it stands, and which value it is."""

from __future__ import annotations

import numpy as np
import pytest
from tiles_for_tests import joined, parts_of, pieces, pixels, same_bits

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import TileGrid
from vllm_mmout.processors import Part

GRID = TileGrid(20, 30, 16, 8)
SCENE = np.arange(600, dtype="float32").reshape(1, 20, 30)
HALF = np.arange(600).reshape(20, 30) % 2 == 0


def parts(scene: np.ndarray = SCENE, valid: np.ndarray | None = None, **known: object) -> list[Part]:
    return parts_of(pieces(scene, GRID), GRID, valid, **known)


@pytest.mark.parametrize(
    ("scene", "nodata", "expected"),
    [
        (SCENE, None, np.nan),
        (SCENE, -9999.0, -9999),
        ((SCENE % 7).astype("uint8"), None, 255),
        ((SCENE % 7).astype("int16"), None, 32767),
        ((SCENE % 7).astype("int16"), -5, -5),
        (SCENE % 2 == 0, None, 255),
    ],
)
def test_where_nothing_was_observed_is_nodata(scene, nodata, expected):
    """Masked pixels hold nodata, one that can be told from all values where the output has none, and no others."""
    raster = joined(parts(scene, HALF, nodata=nodata), GRID)
    assert raster.nodata == expected or np.isnan([raster.nodata, expected]).all()
    got, plain = raster.array[0], (scene.view("uint8") if scene.dtype == np.bool_ else scene)[0]
    np.testing.assert_array_equal(got, np.where(HALF, plain, np.array(expected, plain.dtype)))


@pytest.mark.parametrize("scene", [SCENE, SCENE.astype("uint16")])
def test_without_a_mask_there_is_no_nodata(scene):
    """A result that is valid everywhere gets no nodata that it did not have."""
    raster = joined(parts(scene, np.ones((20, 30), bool)), GRID)
    assert raster.nodata is None
    assert same_bits(raster.array, scene)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_a_value_that_would_mean_nodata_is_an_error(backwards, empty):
    """Where integers have no nodata and use all values, masking is refused, whichever comes first."""
    scene = np.zeros((1, 20, 30), "uint8")
    scene[0, 0, 0] = 255
    valid = None if empty else np.ones((20, 30), bool)
    if valid is not None:
        valid[19, 29] = False
    tiles = parts(scene, valid)
    if empty:
        tiles[-1] = Part(tiles[-1].index, tiles[-1].window, None)
    with pytest.raises(DecodeError, match=r"^tile of rows.* uses 255, .* give the output a nodata of its own"):
        joined(tiles[::-1] if backwards else tiles, GRID)


def test_a_masked_pixel_may_have_any_value():
    """A value that would mean nodata does no harm where it is masked."""
    valid = np.ones((20, 30), bool)
    valid[3, 3] = False
    scene = np.zeros((1, 20, 30), "uint8")
    scene[0, 3, 3] = 255
    assert joined(parts(scene, valid), GRID).nodata == 255


@pytest.mark.parametrize("valid", [None, HALF])
@pytest.mark.parametrize(
    ("dtype", "nodata"),
    [
        *(("uint8", nodata) for nodata in (-9999.0, 256, 0.5, np.nan, np.inf)),
        ("bool", 256),
        ("float32", np.finfo("float64").min),
    ],
)
def test_a_nodata_that_the_dtype_cannot_hold_is_an_error_at_the_first_tile(dtype, nodata, valid, tmp_path):
    """A nodata of another dtype is refused, needed or not, before a second tile is asked for or a file is made."""
    first, *_ = parts(SCENE.astype(dtype), valid, nodata=nodata)
    asked = []

    def tiles():
        yield first
        asked.append("second")

    name = "uint8" if dtype == "bool" else dtype
    with pytest.raises(DecodeError, match=f"{name}, which cannot hold its nodata .*; give the output a nodata of its"):
        joined(tiles(), GRID, folder=tmp_path)
    assert not asked
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nodata", [np.nan, -np.inf, float(np.finfo("float32").min)])
def test_a_nodata_that_the_dtype_just_holds_is_kept(nodata):
    """Not a number, infinity and the lowest value are nodata of a float32 result, in its pixels and in its file."""
    raster = joined(parts(SCENE, HALF, nodata=nodata), GRID)
    np.testing.assert_array_equal(raster.array[0], np.where(HALF, SCENE[0], np.float32(nodata)))
    np.testing.assert_equal(raster.nodata, nodata)


def test_empty_tiles_are_nodata_where_no_other_counts():
    """Tiles without an output are nodata; what they share with others is what those say."""
    grid = TileGrid(10, 30, 10)
    tiles = parts_of([None, np.ones((1, 10, 10), "uint8"), None], grid, nodata=7)
    got = pixels(tiles, grid)[0]
    assert (got[:, :10] == 7).all()
    assert (got[:, 10:20] == 1).all()
    assert (got[:, 20:] == 7).all()
    grid = TileGrid(10, 16, 10, 4)
    tiles = parts_of([None, np.ones((1, 10, 10), "float32")], grid)
    got = pixels(tiles, grid, "linear")[0]
    assert np.isnan(got[:, :7]).all()  # the second tile counts from the seventh column
    assert (got[:, 7:] == 1).all()


def test_only_empty_tiles_are_an_error():
    """A scene of which nothing went through the model has no dtype."""
    with pytest.raises(DecodeError, match="no tile of the scene has an observation"):
        joined(parts_of([None] * len(GRID), GRID), GRID)


@pytest.mark.parametrize("edge", ["shift", "pad"])
def test_masks_follow_the_size_of_the_output(edge):
    """A pixel of the result is nodata where the pixel of the scene that it lies in is."""
    grid = TileGrid(20, 30, 16, 8, edge)
    valid = np.random.default_rng(0).random((20, 30)) < 0.7
    outputs = [tile.repeat(2, 1).repeat(2, 2) for tile in pieces(SCENE, grid)]
    got = pixels(parts_of(outputs, grid, valid), grid)[0]
    np.testing.assert_array_equal(np.isnan(got), ~valid.repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (None, [3, 2.5]),
        (lambda column: column != 8, [3, 1]),
        (lambda column: (column != 7) & (column != 8), [np.nan, 1]),
    ],
)
def test_what_any_tile_observed_is_valid(seen, expected):
    """Where tiles disagree on what was observed, those that saw something are believed."""
    grid = TileGrid(10, 16, 10, 4)  # both tiles count in columns 7 and 8
    first, second = parts_of([np.full((1, 10, 10), value, "float32") for value in (1, 3)], grid)
    columns = np.arange(16)[None].repeat(10, 0)
    tiles = [
        Part(0, first.window, first.output, columns[:, :10] != 7),
        Part(1, second.window, second.output, None if seen is None else seen(columns[:, 6:])),
    ]
    got = pixels(tiles, grid, "linear")[0]
    np.testing.assert_array_equal(got[:, 7:9], [expected] * 10)
