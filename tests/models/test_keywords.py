"""Keywords: what a model's ``forward`` takes by name."""

from __future__ import annotations

import functools

import pytest

from vllm_mmout.errors import InputError, RegistrationError
from vllm_mmout.models.inputs.keywords import Keywords


class Net:
    def forward(self, pixel_values, *, location=None, **further):
        """Not run."""


def test_the_signature_is_read():
    """Names in their order, those without a default required; what ``**`` swallows has no name."""
    found = Keywords.of(Net)
    assert (found.model, found.names, found.required) == ("Net", ("pixel_values", "location"), {"pixel_values"})


def test_a_wrapped_forward_keeps_its_signature():
    """A decorator that uses functools.wraps hides nothing."""

    class Wrapped:
        @functools.wraps(Net.forward)
        def forward(self, *args, **kwargs):
            """Not run."""

    assert Keywords.of(Wrapped).names == ("pixel_values", "location")


@pytest.mark.parametrize("given", [["pixel_values"], ["location", "pixel_values"]])
def test_right_names_pass(given):
    """All that is required, and of the rest what one likes."""
    Keywords.of(Net).check(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "it needs 'pixel_values'"),
        (["location"], "it needs 'pixel_values'"),
        (["pixel_values", "time"], "it does not know 'time'"),
        (["pixels"], "it does not know 'pixels' and it needs 'pixel_values'"),
    ],
)
def test_wrong_names_are_refused(given, says):
    """The error names what the model takes, what is unknown and what is missing."""
    with pytest.raises(InputError, match=r"Net.forward takes pixel_values, location \(optional\); got .*" + says):
        Keywords.of(Net).check(given)


def test_a_model_of_optional_keywords_needs_one():
    """Where every keyword has a default, an input of nothing is refused all the same."""

    class Either:
        def forward(self, pixel_values=None, image_embeds=None):
            """Not run."""

    Keywords.of(Either).check(["image_embeds"])
    with pytest.raises(InputError, match="got nothing: give at least one"):
        Keywords.of(Either).check([])


def test_a_mapper_must_use_the_names_of_forward():
    """What a mapper says it gives is compared before any request."""
    with pytest.raises(RegistrationError, match="gives 'pixels', its forward takes pixel_values, location"):
        Keywords.of(Net).check_declared(["pixels"])
    Keywords.of(Net).check_declared(["pixel_values"])


def test_a_forward_without_keywords_is_refused():
    """Tensors go by keyword: ``forward(self)``, ``*args`` and positions alone cannot be served."""

    class Nothing:
        def forward(self, *tensors):
            """Not run."""

    class Position:
        def forward(self, x, /):
            """Not run."""

    with pytest.raises(RegistrationError, match=r"Nothing\.forward must take its tensors by keyword"):
        Keywords.of(Nothing)
    with pytest.raises(RegistrationError, match=r"Position\.forward takes tensors by position only"):
        Keywords.of(Position)
