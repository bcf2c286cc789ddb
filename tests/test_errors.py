"""What errors say of other exceptions."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import message_of, type_and_message


class WithoutMessageError(Exception):
    """Its message is of no use, or is none."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __str__(self) -> str:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text  # type: ignore[return-value]  # that it may be no text is the point


@pytest.mark.parametrize(
    ("error", "message", "whole"),
    [
        (ValueError("no band"), "no band", "ValueError: no band"),
        (KeyError("B02"), "'B02'", "KeyError: 'B02'"),
        (SystemExit(3), "3", "SystemExit: 3"),
    ],
)
def test_an_exception_is_said_as_python_prints_it(error: BaseException, message: str, whole: str) -> None:
    """Its message, and its type before it."""
    assert (message_of(error), type_and_message(error)) == (message, whole)


@pytest.mark.parametrize(("text", "kind"), [(OSError("no"), "OSError"), (None, "TypeError")])
def test_an_exception_without_a_message_is_said_too(text: object, kind: str) -> None:
    """Where ``__str__`` raises, or gives no text, the type is said, and why there is no message."""
    assert type_and_message(WithoutMessageError(text)) == f"WithoutMessageError: (its message cannot be read: {kind})"
