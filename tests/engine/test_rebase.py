"""rebase: an object of vLLM's gets methods of ours above those that it had."""

from __future__ import annotations

import pytest

from vllm_mmout.engine.binding import rebase

pytestmark = pytest.mark.engine


class Theirs:
    """vLLM's."""

    def says(self):
        return ["vLLM's"]


class Further(Theirs):
    """A user's subclass of it."""

    def says(self):
        return ["the user's", *super().says()]


class Ours(Theirs):
    """Above either."""

    def says(self):
        return ["ours", *super().says()]


class Wings(Theirs):
    """Above all of them."""

    def says(self):
        return ["a wing's", *super().says()]


@pytest.mark.parametrize(("kind", "below"), [(Theirs, ["vLLM's"]), (Further, ["the user's", "vLLM's"])])
def test_each_class_calls_what_was_there_before(kind, below):
    """Twice in a row too, and without touching the class or other objects of it."""
    other, one = kind(), kind()
    one.kept = 1
    rebase(one, Ours)
    rebase(one, Wings)
    assert one.says() == ["a wing's", "ours", *below]
    assert isinstance(one, kind)
    assert one.kept == 1
    assert other.says() == below


def test_a_subclass_of_a_rebased_class_is_no_endless_loop():
    """Whoever derives from the class of a bound object gets its methods, which end."""
    one = Further()
    rebase(one, Ours)
    derived = type("Derived", (type(one),), {})()
    assert derived.says() == ["ours", "the user's", "vLLM's"]


def test_an_object_that_is_of_the_class_stays_as_it_is():
    """And objects of one class get one class."""
    first, second = Further(), Further()
    rebase(first, Ours)
    kind = type(first)
    rebase(first, Ours)
    rebase(second, Ours)
    assert type(first) is type(second) is kind
