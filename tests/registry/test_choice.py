"""Choice: instances for a process, and picks of a request."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import Choice


class Mask(OutputProcessor):
    def __init__(self, threshold=0.5):
        self.threshold = threshold


class Edges(OutputProcessor):
    @classmethod
    def from_config(cls, config, options):
        made = cls()
        made.seen = config["model_type"], dict(options)
        return made


class Broken(OutputProcessor):
    @classmethod
    def from_config(cls, config, options):
        return None


def choice(**processors):
    """A choice of these processors without options."""
    return Choice(processors, {name: {} for name in processors}, settings={}, chosen_by="test")


def test_create_makes_each_with_its_options():
    """Each processor is made from config.json and its own options, in order."""
    made = Choice(
        {"m": Mask, "e": Edges}, {"m": {"threshold": 0.9}, "e": {"x": 1}}, settings={}, chosen_by="test"
    ).create({"model_type": "t"})
    assert list(made) == ["m", "e"]
    assert isinstance(made["m"], Mask)
    assert made["m"].threshold == 0.9
    assert made["e"].seen == ("t", {"x": 1})


def test_create_makes_only_what_is_asked_for():
    """A processor that is not asked for is not made: its decoder may be large."""
    assert list(choice(a=Mask, b=Broken).create({}, "a")) == ["a"]


def test_create_refuses_what_is_no_processor():
    """A from_config that returns something else is an error that names the class."""
    with pytest.raises(RegistrationError, match=r"Broken\.from_config must return an OutputProcessor, got None"):
        choice(b=Broken).create({})


@pytest.mark.parametrize(("names", "picks"), [(None, ("a",)), ("b", ("b",)), (["b"], ("b",)), (("b", "a"), ("b", "a"))])
def test_pick(names, picks):
    """A request gets the default, or what it names in the order it names them."""
    assert choice(a=Mask, b=Edges).pick(names) == picks


def test_unknown_picks_are_all_named():
    """Picks that do not exist are an error with every unknown name, the likely slip, and every known name."""
    with pytest.raises(OptionError) as caught:
        choice(mask=Mask, edges=Edges).pick(["mask", "maks", "xyz"])
    assert str(caught.value) == (
        "the model has no output processor 'maks' nor 'xyz'; did you mean 'mask'? (known: mask, edges)"
    )
