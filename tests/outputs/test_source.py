"""Source: what outputs know of their input."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import InputError
from vllm_mmout.outputs import Source


def test_a_mask_tells_the_size() -> None:
    """Where no size is given, that of the mask is the input's; without either there is none."""
    assert Source(valid=np.ones((3, 4), bool)).size == (3, 4)
    assert Source().size is None


def test_sizes_are_plain_integers() -> None:
    """Sizes as NumPy and JSON have them become tuples of Python's integers."""
    source = Source(size=[np.int64(3), 4], seen=(np.uint8(1), 2))
    assert (source.size, source.seen) == ((3, 4), (1, 2))
    assert type(source.size[0]) is int


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": (0, 4)}, r"size must be \(height, width\), two integers of 1 or more, got \(0, 4\)"),
        ({"size": (3, 4, 5)}, "size must be"),
        ({"seen": (2.5, 2)}, "seen must be"),
        ({"seen": (True, 2)}, "seen must be"),
        ({"valid": np.ones((3, 4))}, r"valid must be bool \[height, width\], got float64 \[3, 4\]"),
        ({"valid": np.ones((1, 3, 4), bool)}, r"got bool \[1, 3, 4\]"),
        ({"valid": np.ones((3, 4), bool), "size": (4, 3)}, r"valid must have the input's size \(4, 3\), got \(3, 4\)"),
    ],
)
def test_what_is_no_input_is_refused(fields: dict[str, object], words: str) -> None:
    """The error names the field, what it must be and what it is."""
    with pytest.raises(InputError, match=words):
        Source(**fields)
