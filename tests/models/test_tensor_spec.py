"""TensorSpec: what a keyword of ``forward`` takes."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import InputError, RegistrationError
from vllm_mmout.models.inputs.tensor_spec import TensorSpec

SPEC = TensorSpec((3, (1, 8), (2, 4)), ("float32", "uint8"))


@pytest.mark.parametrize("shape", [(3, 1, 2), (3, 8, 4), (3, 5, 3)])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_what_lies_within_is_taken(shape, dtype):
    """Every shape within the bounds and every named dtype passes."""
    SPEC.check("pixel_values", np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 9, 2), "float32"),
        ((3, 1, 1), "float32"),
        ((2, 1, 2), "float32"),
        ((3, 1), "float32"),
        ((1, 3, 1, 2), "float32"),
        ((), "float32"),
        ((3, 1, 2), "float64"),
    ],
)
def test_what_lies_outside_is_refused_by_name(shape, dtype):
    """The error names the keyword, what it takes, and what came."""
    says = rf"pixel_values must be float32 or uint8 \[3, 1..8, 2..4\], got {dtype} \[{', '.join(map(str, shape))}\]"
    with pytest.raises(InputError, match=says):
        SPEC.check("pixel_values", np.zeros(shape, dtype))


def test_a_tensor_of_torch_is_checked_the_same():
    """Torch's names of dtypes are numpy's, and bfloat16 is one that numpy lacks."""
    torch = pytest.importorskip("torch")
    SPEC.check("x", torch.zeros(3, 1, 2))
    with pytest.raises(InputError, match="got bfloat16"):
        SPEC.check("x", torch.zeros(3, 1, 2, dtype=torch.bfloat16))


def test_zeros_are_the_largest():
    """The dummy input has the most of every axis and the usual dtype."""
    zeros = SPEC.zeros()
    assert (zeros.shape, zeros.dtype) == ((3, 8, 4), np.float32)
    SPEC.check("x", zeros)


@pytest.mark.parametrize(
    ("shape", "dtypes", "says"),
    [
        ((0,), ("float32",), "an axis must be a size of 1 or more"),
        (((3, 2),), ("float32",), r"\(least, most\), got \(3, 2\)"),
        ((1,), (), "a tensor needs a dtype"),
        ((1,), ("floaty",), "'floaty' is not a dtype of numpy"),
    ],
)
def test_a_malformed_spec_is_refused(shape, dtypes, says):
    """What can hold nothing is an error of the line that says it."""
    with pytest.raises(RegistrationError, match=says):
        TensorSpec(shape, dtypes)
