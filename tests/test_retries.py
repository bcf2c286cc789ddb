"""The one policy of retries: how many, with which pauses, and which errors."""

from __future__ import annotations

import pytest

from vllm_mmout.retries import BrokenError, Retries, call_with_retries


def test_pauses_double_up_to_a_limit_and_end_after_the_last_retry():
    """A pause is twice the last one, at most 30 seconds unless the server asks for more, until no retry is left."""
    retries = Retries(most=8, first_pause_s=0.5)
    assert [retries.failed() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert retries.failed() is None
    assert Retries(most=1, first_pause_s=0.5).failed(asked_s=45) == 45


def test_an_attempt_that_made_progress_uses_up_no_retry():
    """Attempts that made progress may be repeated without end, and the pause does not grow."""
    retries = Retries(most=0, first_pause_s=0.5)
    assert [retries.failed(counts=False) for _ in range(3)] == [0, 0, 0]
    assert retries.failed() is None


def test_only_temporary_failures_are_repeated():
    """A step that breaks is called again; another error of it leaves at once."""
    errors = [BrokenError("broken"), BrokenError("broken again", 3.0), ValueError("wrong")]
    waited = []

    def step():
        raise errors[len(waited)]

    with pytest.raises(ValueError, match="wrong"):
        call_with_retries(step, waited.append)
    assert waited == errors[:2]
