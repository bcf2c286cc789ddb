"""TensorOutput: arrays by name, read back by NumPy."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs import TensorOutput

LOGITS = np.arange(6, dtype="float32").reshape(2, 3)


class Tensor:
    """What a torch tensor on a device looks like from outside."""

    def __init__(self, array: np.ndarray, dtype: str = "torch.float32") -> None:
        self.array, self.dtype, self.steps = array, dtype, []

    def _step(self, name: str) -> Tensor:
        self.steps.append(name)
        return self

    def detach(self) -> Tensor:
        return self._step("detach")

    def cpu(self) -> Tensor:
        return self._step("cpu")

    def float(self) -> Tensor:
        return self._step("float")

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


def test_one_array_is_the_array(tmp_path: Path) -> None:
    """A single array is .array, and .npy and .npz hold it."""
    output = TensorOutput(LOGITS)
    assert output.array is LOGITS
    np.testing.assert_array_equal(np.load(output.save(tmp_path / "a.npy")), LOGITS, strict=True)
    with np.load(output.save(tmp_path / "a.npz")) as arrays:
        np.testing.assert_array_equal(arrays["output"], LOGITS, strict=True)
    assert repr(output) == "TensorOutput(output: float32 [2, 3])"


def test_several_arrays_are_found_by_name() -> None:
    """Names are kept in their order; .array asks to choose, .npy holds one only."""
    output = TensorOutput({"logits": LOGITS, "boxes": LOGITS[0]})
    with np.load(BytesIO(output.to_bytes())) as arrays:
        assert list(arrays) == ["logits", "boxes"]
        np.testing.assert_array_equal(arrays["boxes"], LOGITS[0])
    with pytest.raises(InputError, match=r"2 arrays \(logits, boxes\); choose from \.arrays"):
        _ = output.array
    with pytest.raises(SaveError, match=r"\.npy holds one array, the output has 2"):
        output.to_bytes("npy")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "shape",
    [(), (0,), (3, 0), (32_768,), (32_769,), (70_000, 1), (5, 40_000), (2, 3, 33_000), (200, 300), (3, 182, 181)],
)
def test_json_holds_nested_lists(shape: tuple[int, ...]) -> None:
    """JSON gives what NumPy's own lists would, of arrays of any size."""
    rng = np.random.default_rng(5)
    arrays = {
        "a": rng.normal(size=shape),
        'é "b"': rng.integers(-9, 9, shape, "int16"),
        "c": rng.normal(size=shape) > 0,
    }
    found = json.loads(TensorOutput(arrays).to_bytes("json"))
    assert found == {name: array.tolist() for name, array in arrays.items()}


def test_json_has_no_numbers_for_some() -> None:
    """What is no number is null; what JSON cannot hold is refused."""
    holes = np.full((3, 20_000), np.nan)
    holes[1] = np.inf
    holes[2, 7] = 5
    expected = [[None] * 20_000 for _ in range(3)]
    expected[2][7] = 5
    assert json.loads(TensorOutput(holes).to_bytes("json")) == {"output": expected}
    with pytest.raises(SaveError, match=r"JSON has no numbers of complex64; save 'output' as \.npz"):
        TensorOutput(np.zeros(3, "complex64")).to_bytes("json")


def test_a_mapping_of_one_has_an_array() -> None:
    """One array under a name of its own is .array as well."""
    assert TensorOutput({"logits": LOGITS}).array is LOGITS


def test_tensors_of_a_device_come_to_the_host() -> None:
    """A tensor is detached and copied to the CPU; bfloat16, which NumPy lacks, becomes float32 first."""
    for dtype, steps in (("torch.float32", ["detach", "cpu"]), ("torch.bfloat16", ["detach", "cpu", "float"])):
        tensor = Tensor(LOGITS, dtype)
        np.testing.assert_array_equal(TensorOutput(tensor).array, LOGITS)
        assert tensor.steps == steps


def test_torch_tensors_are_taken() -> None:
    """Real tensors, with gradient and in bfloat16, come with their values."""
    torch = pytest.importorskip("torch", reason="torch comes with the engine")
    np.testing.assert_array_equal(
        TensorOutput(torch.ones(2, requires_grad=True)).array, np.ones(2, "float32"), strict=True
    )
    half = TensorOutput(torch.tensor([1.5, -2.0], dtype=torch.bfloat16)).array
    np.testing.assert_array_equal(half, np.array([1.5, -2.0], "float32"), strict=True)


@pytest.mark.parametrize("data", [{}, {1: LOGITS}, {"": LOGITS}])
def test_names_must_be_there_and_text(data: dict[object, np.ndarray]) -> None:
    """Nothing, or a name that is no text, is an error."""
    with pytest.raises(InputError, match="takes an array, or arrays by name"):
        TensorOutput(data)


@pytest.mark.parametrize("name", ["file", "allow_pickle", "a/b", "a\\b"])
def test_a_name_that_no_archive_can_hold_is_refused(name: str) -> None:
    """Names that NumPy or a ZIP take for something else are errors, not damaged files."""
    with pytest.raises(SaveError, match=r"cannot hold an array named .*; rename it"):
        TensorOutput({name: LOGITS}).to_bytes()


def test_python_objects_are_refused() -> None:
    """An array of objects could only be pickled: it is refused when the output is made."""
    with pytest.raises(InputError, match="array 'a' holds Python objects"):
        TensorOutput({"a": np.array([{}])})


def test_options_are_refused() -> None:
    """There is nothing to choose."""
    with pytest.raises(SaveError, match="npz takes no options, got quality"):
        TensorOutput(LOGITS).to_bytes(quality=3)
