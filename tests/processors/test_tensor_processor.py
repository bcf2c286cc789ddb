from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.params import OutputParams
from vllm_mmout.processors import TensorProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine


def test_what_the_model_emits_travels_as_it_is():
    """Reduce hands on the very object."""
    output = {"logits": torch.zeros(2, 3)}
    assert TensorProcessor().reduce(output, OutputParams()) is output


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint16", "int64", "float16", "float32", "float64"])
def test_a_tensor_becomes_an_array_of_its_shape_and_dtype(dtype):
    """The array holds the values of the tensor, in its dtype."""
    expected = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    array = TensorProcessor().decode(torch.from_numpy(expected), OutputParams()).array
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)


def test_bfloat16_becomes_float32_exactly():
    """Numpy has no bfloat16; float32 holds each of its values."""
    values = [0.1, -3.140625, 1e38, float("inf")]
    array = TensorProcessor().decode(torch.tensor(values, dtype=torch.bfloat16), OutputParams()).array
    assert array.dtype == np.float32
    assert array.tolist() == torch.tensor(values, dtype=torch.bfloat16).tolist()


def test_a_dict_keeps_its_names():
    """Several tensors become several arrays of the same names."""
    raw = {"boxes": torch.ones(5, 4), "scores": torch.arange(5)}
    arrays = TensorProcessor().decode(raw, OutputParams()).arrays
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "boxes": [[1.0] * 4] * 5,
        "scores": [0, 1, 2, 3, 4],
    }


def test_a_result_is_its_owners():
    """Writing to a result changes nothing of what was received."""
    raw = torch.zeros(3)
    array = TensorProcessor().decode(raw, OutputParams()).array
    array[:] = 7
    assert raw.tolist() == [0, 0, 0]
