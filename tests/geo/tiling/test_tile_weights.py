"""Weights along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.geo.tiling.blending import axis_weights


def test_none_cuts_in_the_middle_of_what_is_shared():
    """With "none" each of two tiles has half of what they share."""
    left, right = axis_weights((0, 6), 10, 16, "none")
    assert left.tolist() == [1] * 8 + [0] * 2
    assert right.tolist() == [0] * 2 + [1] * 8


def test_linear_leaves_out_a_quarter_and_ramps_over_half():
    """Of 16 shared pixels 4 on either side count nothing, and between the weight rises evenly."""
    left, right = axis_weights((0, 24), 40, 64, "linear")
    ramp = (np.arange(8) + 0.5) / 8
    np.testing.assert_allclose(right, [0] * 4 + ramp.tolist() + [1] * 28, atol=1e-15)
    np.testing.assert_array_equal(left, right[::-1])


def test_cosine_is_the_square_of_a_sine():
    """The ramp of "cosine" is that of Hann's window."""
    _, right = axis_weights((0, 24), 40, 64, "cosine")
    np.testing.assert_allclose(right[4:12], np.hanning(33)[1:17:2], atol=1e-15)


@pytest.mark.parametrize("blend", ["linear", "cosine", "none"])
def test_the_scenes_edge_counts_fully(blend):
    """A single tile, and the outer pixels of outer tiles, have weight one."""
    assert axis_weights((0,), 10, 7, blend)[0].tolist() == [1] * 7
    left, right = axis_weights((0, 8), 16, 20, blend)  # the second hangs over the edge
    assert (left[0], right[-1], len(right)) == (1, 1, 12)


@pytest.mark.parametrize(("overlap", "expected"), [(1, [0.5]), (2, [0, 1]), (3, [0, 0.5, 1]), (4, [0, 0.25, 0.75, 1])])
def test_narrow_overlaps_have_sensible_ramps(overlap, expected):
    """One to four shared pixels give the ramp that their centres lie on."""
    _, right = axis_weights((0, 8 - overlap), 8, 16 - overlap, "linear")
    np.testing.assert_allclose(right[:overlap], expected, atol=1e-15)


@pytest.mark.parametrize("blend", ["linear", "cosine", "none"])
def test_three_tiles_over_a_pixel(blend):
    """A last tile that is moved far inward shares pixels with two; their weights still sum to one."""
    starts, tile, size = (0, 8, 10), 16, 26
    total = np.zeros(size)
    for start, weight in zip(starts, axis_weights(starts, tile, size, blend), strict=True):
        total[start : start + tile] += weight
    np.testing.assert_allclose(total, 1, rtol=1e-15)
