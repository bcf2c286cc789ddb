"""What several tiles say of the same pixels, averaged."""

from __future__ import annotations

import numpy as np
import pytest
from tiles_for_tests import same_bits

from vllm_mmout.geo.tiling.blending import Contribution, averaged

NAN, INF = np.nan, np.inf


def mean(
    *said: tuple[float, float, bool | None], nodata: float | None = None, dtype: str = "float32", bands: int = 1
) -> np.ndarray:
    """The mean of values with a weight each, at one pixel; False hides one."""
    return averaged(
        [
            Contribution(
                tile,
                np.full((bands, 1, 1), value, dtype),
                np.full((1, 1), weight),
                None if valid is None else np.full((1, 1), valid),
            )
            for tile, (value, weight, valid) in enumerate(said)
        ],
        nodata,
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([(1, 0.25, None), (3, 0.75, None)], 2.5),
        ([(1, 0.25, None), (NAN, 0.75, None)], 1),
        ([(NAN, 0.25, None), (3, 0.5, None), (6, 0.25, None)], 4),
        ([(INF, 0.25, None), (3, 0.75, None)], 3),
        ([(1, 0.25, None), (3, 0.75, False)], 1),
        ([(1, 0.25, True), (3, 0.75, True)], 2.5),
        ([(-9999, 0.25, None), (3, 0.75, None)], 3),
        ([(1, 0.25, None)], 1),
        # nothing is known
        ([(NAN, 0.5, None), (NAN, 0.5, None)], NAN),
        ([(INF, 0.5, None), (INF, 0.5, None)], INF),
        ([(INF, 0.5, None), (NAN, 0.5, None)], INF),
        ([(-9999, 0.5, None), (NAN, 0.5, None)], -9999),
        ([(1, 0.5, False), (INF, 0.5, None)], INF),
        ([(1, 0.5, False), (-9999, 0.5, True), (2, 0.5, False)], -9999),
        # one tile did not say anything
        ([(1, 0.1, None), (3, 0.3, None)], 2.5),
    ],
)
def test_the_mean_is_that_of_what_is_known(said, expected):
    """Nodata, NaN, infinities and masked values are left out; where nothing is left, the first valid value stands."""
    np.testing.assert_allclose(mean(*said, nodata=-9999.0).ravel(), [expected], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [-0.0, 0.0, 0.1, 1e-7, 6e4])
@pytest.mark.parametrize("other", [None, NAN])
def test_equal_values_stay_what_they_are(dtype, value, other):
    """The mean of equal values is that value to the last bit, whatever the weights and whatever is unknown."""
    said = [(value, 1 / 3, None), (value, 0.1, None), (value if other is None else other, 17 / 30, None)]
    got = mean(*said, dtype=dtype)
    assert same_bits(got, np.full((1, 1, 1), value, dtype))


def test_the_mean_of_huge_values_is_finite():
    """Sums do not leave the dtype."""
    most = float(np.finfo("float64").max)
    assert mean((most, 0.5, None), (most, 0.5, None), dtype="float64").item() == most
    assert mean((most, 0.5, None), (-most, 0.5, None), dtype="float64").item() == 0


def test_a_nodata_beyond_the_dtype_equals_nothing():
    """The lowest float64 as nodata of float32 values hides none of them."""
    assert mean((1, 0.5, None), (2, 0.5, None), nodata=-1.7976931348623157e308).item() == 1.5


def test_many_bands_are_averaged_alike():
    """Bands beyond what is averaged at once have the same mean."""
    weight = np.full((128, 128), 0.5)
    got = averaged([Contribution(tile, np.full((40, 128, 128), tile, "float32"), weight) for tile in (0, 1)], None)
    assert (got == 0.5).all()
