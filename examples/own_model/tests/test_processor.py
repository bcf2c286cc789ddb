"""Tests of the output processor alone, without a model or an engine."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from vllm_mmout import MMOutError, OutputParams
from vllm_mmout.testing import check_output_processor, tensors

from green_cover.processor import CoverPercent

SHARES = torch.tensor([[0.0, 0.004, 0.006], [0.526, 1.0, torch.nan]]).reshape(1, 1, 2, 3)


def result(processor, **params):
    """Return the result of a request for `SHARES`."""
    options = OutputParams(**params)
    return processor.decode(processor.reduce(SHARES, options)[0], options)


@pytest.mark.parametrize("step", [1, 50])
def test_keeps_the_promises_of_a_processor(step):
    """The processor keeps the engine's contract, for shares and for values that a model should never return."""
    shares = tensors(("n", 1, "height", "width"), elements=st.floats(0, 1, width=16))
    anything = tensors(("n", 1, "height", "width"))
    check_output_processor(lambda: CoverPercent(step=step), outputs=shares | anything)


ROUNDED = [
    (1, [[0, 0, 1], [53, 100, 255]]),
    (5, [[0, 0, 0], [55, 100, 255]]),
    (50, [[0, 0, 0], [50, 100, 255]]),
]


@pytest.mark.parametrize(("step", "percent"), ROUNDED)
def test_percent_are_rounded_to_steps(step, percent):
    """The option sets the step that percent are rounded to. NaN becomes nodata."""
    raster = result(CoverPercent(step=step))
    np.testing.assert_array_equal(raster.array, np.array([percent], np.uint8))
    assert (raster.nodata, raster.units) == (255, ("%",))


def test_shares_come_as_the_model_gave_them():
    """The output "share" returns the model's values unchanged."""
    raster = result(CoverPercent(), output="share")
    np.testing.assert_array_equal(raster.array, SHARES[0].numpy())
    assert np.isnan(raster.nodata)


def test_more_cover_is_darker():
    """The picture goes from light soil to dark leaf, and nodata is transparent."""
    picture = np.asarray(result(CoverPercent()).image)
    assert picture[0, 0].tolist() == [217, 207, 180, 255]
    assert picture[1, 1].tolist() == [0, 90, 50, 255]
    assert picture[1, 2, 3] == 0


def test_a_wrong_step_is_refused():
    """An invalid option raises an error with the allowed values, at the start of an engine."""
    with pytest.raises(MMOutError, match="step must be one of 1, 2, 5, 10, 20, 25, 50, got 3"):
        CoverPercent(step=3)


def test_another_models_output_is_refused():
    """Logits of several classes are not shares."""
    with pytest.raises(MMOutError, match=r"takes shares \[n, 1, height, width\], got \[2, 3, 8, 8\]"):
        CoverPercent().reduce(torch.zeros(2, 3, 8, 8), OutputParams())
