"""Raster: picking bands, and where all of them were observed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.raster import Raster

NAMED = Raster(np.arange(24).reshape(4, 2, 3), descriptions=("B02", "B03", None, "B03"))


def test_bands_are_picked_by_number_from_1_and_may_repeat() -> None:
    """Numbers count from 1 as in rasterio; order and repetition are the caller's."""
    picked = NAMED.select([3, 1, 1])
    np.testing.assert_array_equal(picked.array, NAMED.array[[2, 0, 0]])
    assert picked.descriptions == (None, "B02", "B02")


def test_bands_are_picked_by_description() -> None:
    """A description names a band, also between numbers."""
    np.testing.assert_array_equal(NAMED.select(["B02", 4]).array, NAMED.array[[0, 3]])


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        ([5], r"band 5 does not exist \(bands count from 1\); the raster has 4 bands: 1 'B02', 2 'B03', 4 'B03'"),
        ([0], "band 0 does not exist"),
        (["B99"], "band 'B99' does not exist; the raster has 4 bands: 1 'B02'"),
        (["B03"], "band 'B03' is the description of 2 bands"),
        ([True], "a number from 1 or a description, got True"),
        ([1.5], "a number from 1 or a description, got 1.5"),
        ([], "bands is empty"),
    ],
)
def test_a_band_that_does_not_exist_lists_those_that_do(bands: list[object], words: str) -> None:
    """The error names the band and what the raster has."""
    with pytest.raises(InputError, match=words):
        NAMED.select(bands)  # type: ignore[arg-type]


def test_a_raster_without_descriptions_says_so() -> None:
    """Asking by name where there are no names tells that there are none."""
    with pytest.raises(InputError, match="the raster has 1 band without descriptions"):
        Raster(np.zeros((1, 2, 2))).select(["B02"])


def test_a_pixel_is_valid_where_every_band_is() -> None:
    """A nodata or NaN in any one band makes the pixel unusable; other bands do not matter once they are not picked."""
    array = np.ones((3, 2, 2), "float32")
    array[0, 0, 0] = -9999
    array[1, 0, 1] = math.nan
    raster = Raster(array, nodata=-9999.0)
    np.testing.assert_array_equal(raster.valid(), [[False, False], [True, True]])
    np.testing.assert_array_equal(raster.select([2]).valid(), [[True, False], [True, True]])
    assert raster.select([3]).valid() is None


def test_the_callers_nodata_wins_over_the_files() -> None:
    """A nodata that is given replaces the file's own, 0 too."""
    raster = Raster(np.array([[[0, 1, 2]]], "uint8"), nodata=1)
    np.testing.assert_array_equal(raster.valid(0), [[False, True, True]])
    np.testing.assert_array_equal(raster.valid(), [[True, False, True]])


@pytest.mark.parametrize("nodata", [-9999, 300, 1.5, math.nan, math.inf])
def test_a_nodata_that_no_pixel_can_have_marks_nothing(nodata: float) -> None:
    """A value outside the dtype is compared with nothing instead of being wrapped into it."""
    array = np.array([[[1, 241, 44, 0]]], "uint8")  # 241 is -9999, 44 is 300 modulo 256
    assert Raster(array, nodata=nodata).valid() is None


def test_a_nodata_of_64_bits_keeps_every_digit() -> None:
    """2**63 - 1 is told from its neighbour, which is the same float."""
    array = np.array([[[2**63 - 1, 2**63 - 2]]], "int64")
    np.testing.assert_array_equal(Raster(array, nodata=2**63 - 1).valid(), [[False, True]])


def test_a_nodata_too_large_for_float32_marks_nothing() -> None:
    """A double beyond float32 is not taken for infinity."""
    assert Raster(np.array([[[np.finfo("float32").max, 1.0]]], "float32"), nodata=1e300).valid() is None


def test_an_alpha_band_that_is_picked_is_data() -> None:
    """Picking the alpha band by number makes it a band like others, without a mask."""
    mask = np.array([[True, False]])
    raster = Raster(np.array([[[5, 6]], [[255, 0]]], "uint8"), mask=mask, alpha=2)
    np.testing.assert_array_equal(raster.without_alpha().valid(), mask)
    np.testing.assert_array_equal(raster.select([1]).valid(), mask)
    assert raster.select([1, 2]).valid() is None
    assert raster.without_alpha().bands == 1


def test_a_nodata_is_not_looked_for_in_alpha() -> None:
    """Where nodata is 255 as well as full opacity, only the bands that are data are compared."""
    raster = Raster(np.array([[[5, 255]], [[255, 255]]], "uint8"), nodata=255, mask=np.ones((1, 2), bool), alpha=2)
    np.testing.assert_array_equal(raster.valid(), [[True, False]])


@given(
    hnp.arrays(
        "int16", st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)), elements=st.integers(-2, 2)
    ),
    st.integers(-2, 2),
)
def test_valid_agrees_with_a_loop_over_pixels(array: np.ndarray, nodata: int) -> None:
    """The mask is what one gets by looking at each pixel."""
    valid = Raster(array, nodata=nodata).valid()
    expected = [
        [all(value != nodata for value in array[:, row, col]) for col in range(array.shape[2])]
        for row in range(array.shape[1])
    ]
    np.testing.assert_array_equal(np.ones(array.shape[1:], bool) if valid is None else valid, expected)


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3, 4)])
def test_an_array_of_another_rank_is_refused(shape: tuple[int, ...]) -> None:
    """A raster has bands, rows and columns."""
    with pytest.raises(InputError, match="must be \\[bands, height, width\\]"):
        Raster(np.zeros(shape))


def test_descriptions_must_be_one_a_band() -> None:
    """Fewer descriptions than bands are an error."""
    with pytest.raises(InputError, match="one entry per band, 2, got 1"):
        Raster(np.zeros((2, 1, 1)), descriptions=("a",))
