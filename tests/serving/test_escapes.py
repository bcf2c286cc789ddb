"""Percent-escapes: the same bytes as of ``urllib``, however a text is cut, without its memory."""

from __future__ import annotations

import tracemalloc
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.serving.inputs import data_urls
from vllm_mmout.serving.inputs.data_urls import unescaped


@given(st.lists(st.sampled_from(["%", "%4", "%41", "%fF", "%G0", "0", "a", "z", "+", ",", "\0"])), st.integers(3, 70))
def test_the_bytes_are_those_of_urllib(parts, piece):
    """Escapes, halves of them and what only looks like one, as text and as bytes, in pieces of any length."""
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_urls, "_PIECE", piece)
        for form in (text, text.encode(), bytearray(text.encode())):
            assert b"".join(unescaped(form)) == unquote_to_bytes(text)
            assert b"".join(unescaped(form, 2)) == unquote_to_bytes(text[2:])


def test_other_letters_are_refused():
    """A text that is not ASCII has no bytes."""
    with pytest.raises(UnicodeEncodeError):
        list(unescaped("%41\u00e9"))


def test_escapes_alone_take_little_memory():
    """What is made of a text of nothing but escapes is no larger than some pieces of it."""
    text = "%41" * (1 << 21)
    tracemalloc.start()
    try:
        assert sum(map(len, unescaped(text))) == 1 << 21
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
