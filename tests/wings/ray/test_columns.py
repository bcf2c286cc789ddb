"""Columns of a dataset: what each result of a batch adds to its row."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.ray.columns import columns_of

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def result(outputs, error=None):
    """A result of a request."""
    return SimpleNamespace(outputs=outputs, error=error)


def test_results_are_files_of_their_usual_formats():
    """A picture is a PNG, an array an npz, data are JSON; a request that failed has its message alone."""
    results = [
        result(ImageOutput(PIXELS)),
        result(np.float32([1, 2])),
        result({"count": 3}),
        result(None, DecodeError("broken")),
    ]
    columns = columns_of(results, OutputParams())
    assert columns.keys() == {"error", "output", "format"}
    assert list(columns["format"]) == ["png", "npz", "json", None]
    assert list(columns["error"]) == [None, None, None, "broken"]
    picture, array, data, nothing = columns["output"]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(picture))), PIXELS)
    np.testing.assert_array_equal(np.load(io.BytesIO(array))["output"], [1, 2])
    assert (data, nothing) == (b'{"count":3}', None)


def test_what_has_no_form_is_refused():
    """The error names the class, and what its processor can define."""
    with pytest.raises(OptionError, match=r"object, which has no form in a dataset .*to_response"):
        columns_of([result(object())], OutputParams())
