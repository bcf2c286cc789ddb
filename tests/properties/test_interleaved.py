"""Requests that share an engine's steps against the same requests one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from water_oracle import leftovers, logits

from vllm_mmout import OutputParams

pytestmark = pytest.mark.engine

SEGMENTATION = [("segmentation", output) for output in ("classes", "probabilities", "confidence")]
PICKS = [
    (None, None),
    *SEGMENTATION,
    ("tensor", None),
    ("Echo", None),
    (("tensor", "Echo"), None),
    (("Echo", "segmentation", "tensor"), None),
    ("ReduceRaisesForBright", None),
    ("ReduceRaises", None),
    ("DecodeRaises", None),
]
"""Processors and what is asked of them: few, so that equal ones meet in a step; some fail."""


@dataclass(frozen=True)
class Request:
    """One request: what makes its input, and what is asked."""

    seed: int
    height: int
    width: int
    dtype: str
    holes: bool
    processor: str | tuple[str, ...] | None
    output: str | None
    bands: tuple[int, ...] | None

    @property
    def data(self):
        """[6, height, width]; with holes some pixels are without an observation."""
        rng = np.random.default_rng(self.seed)
        array = rng.integers(0, 10_000, (6, self.height, self.width)).astype(self.dtype)
        if self.dtype == "float32":
            array /= 10_000
        if self.holes:
            array[:, rng.random((self.height, self.width)) < 0.2] = -1 if self.dtype == "int16" else 0
        array[:, 0, 0] = 1  # never all holes
        return array

    @property
    def params(self):
        """As the processors get them."""
        nodata = None if not self.holes else -1.0 if self.dtype == "int16" else 0.0
        return OutputParams(processor=self.processor, output=self.output, bands=self.bands, nodata=nodata)


sizes = st.sampled_from([1, 2, 7, 16])  # few, so that equal shapes meet in a step
requests = st.builds(
    lambda seed, height, width, dtype, holes, pick, bands: Request(seed, height, width, dtype, holes, *pick, bands),
    seed=st.integers(0, 999),
    height=sizes,
    width=sizes,
    dtype=st.sampled_from(["uint8", "uint16", "int16", "float32"]),
    holes=st.booleans(),
    pick=st.sampled_from(PICKS),
    bands=st.none() | st.sampled_from([(1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1), (2, 2, 2, 5, 5, 5)]),
)


def flat(value):
    """An output as plain data that compares by content, to the byte."""
    if isinstance(value, dict):
        return [(name, flat(part)) for name, part in value.items()]
    array = getattr(value, "array", None)
    if array is None:
        return value
    return type(value).__name__, array.dtype.str, array.shape, array.tobytes(), repr(getattr(value, "nodata", None))


def told(result):
    """What a caller learns of one request."""
    if result.error is not None:
        return type(result.error).__name__, str(result.error)
    return flat(result.outputs)


def run(llm, batch):
    """What a list of requests gives, in its order."""
    results = llm.generate([request.data for request in batch], [request.params for request in batch], use_tqdm=False)
    assert leftovers(llm.llm_engine.output_processor) == {}
    return [told(result) for result in results]


TENSOR = Request(1, 7, 7, "uint16", holes=False, processor="tensor", output=None, bands=None)
BRIGHT = Request(2, 7, 7, "uint16", holes=False, processor="ReduceRaisesForBright", output=None, bands=None)
CLASSES = Request(3, 7, 7, "int16", holes=True, processor="segmentation", output="classes", bands=None)


@given(batch=st.lists(requests, min_size=2, max_size=8))
@example(batch=[TENSOR] * 20)
@example(batch=[TENSOR, BRIGHT, CLASSES] * 7)
def test_together_as_one_after_the_other(llm, batch):
    """A list gives the same bytes and errors as its requests alone, whatever meets in a step."""
    shapes = {(request.height, request.width, request.dtype) for request in batch}
    event("all of one shape" if len(shapes) == 1 else "shapes that differ")

    assert run(llm, batch) == [run(llm, [request])[0] for request in batch]


@given(data=st.data(), batch=st.lists(requests, min_size=2, max_size=8))
def test_in_any_order(llm, data, batch):
    """Each result stays with its own input when the list is put into another order."""
    order = data.draw(st.permutations(range(len(batch))), label="order")
    alone = run(llm, batch)

    assert run(llm, [batch[place] for place in order]) == [alone[place] for place in order]


@given(batch=st.lists(requests, min_size=1, max_size=8))
def test_together_as_computed_outside(llm, batch):
    """The raw tensors of a mixed list are what numpy computes of each input."""
    asked = [OutputParams(processor=("tensor", "Echo") if index % 2 else "tensor") for index in range(len(batch))]
    results = llm.generate([request.data for request in batch], asked, use_tqdm=False)

    for request, result in zip(batch, results, strict=True):
        outputs = result.outputs["tensor"] if isinstance(result.outputs, dict) else result.outputs
        np.testing.assert_array_equal(outputs.array, logits(request.data))
