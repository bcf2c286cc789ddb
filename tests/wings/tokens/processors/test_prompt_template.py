"""Prompt templates: what they hold, and what they refuse."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate


def text_of(template, **values):
    """A prompt as one text."""
    return "".join(piece for piece, _ in template.filled_pieces(values))


def test_without_a_template_the_clients_text_is_the_prompt():
    """``None`` is ``{prompt}`` of pictures and ``{input}`` of speech."""
    assert text_of(PromptTemplate.parse(None, "image"), prompt="a {lake}") == "a {lake}"
    assert text_of(PromptTemplate.parse(None, "audio"), input="hello") == "hello"


def test_values_go_in_for_their_places():
    """What a client gives is told apart from the template's own text."""
    template = PromptTemplate.parse("{{x}} {prompt}: {rows:4}*{columns:5}", "image")
    assert template.names == {"prompt", "rows", "columns"}
    assert text_of(template, prompt="lake", rows="7") == "{x} lake: 7*5"
    assert template.filled_pieces({"prompt": "lake"})[:2] == [("{x} ", False), ("lake", True)]
    assert (template.default("rows"), template.default("prompt")) == ("4", None)


def test_a_default_may_be_any_text():
    """A voice that is spoken with where a client names none."""
    template = PromptTemplate.parse("{voice:tara}: {input} [{instructions}]", "audio")
    assert text_of(template, input="hi") == "tara: hi []"
    assert text_of(template, input="hi", voice="leo", instructions="slow") == "leo: hi [slow]"


@pytest.mark.parametrize(
    ("text", "modality", "message"),
    [
        (3, "image", "must be a text with {prompt} in it, got 3"),
        ("a lake", "image", "no place for the client's text; add {prompt}"),
        ("{input}", "image", "unknown place {input} .known: {prompt}, {rows}, {columns}"),
        ("{prompt}", "audio", "known: {input}, {voice}, {instructions}"),
        ("{prompt} {", "image", "a single '{' at 9; double it"),
        ("{prompt} }", "image", "a single '}' at 9"),
        ("{prompt} {rows:many}", "image", "default of {rows} must be a whole number above 0, got {rows:many}"),
        ("{prompt!r}", "image", "a single '{' at 0"),
    ],
)
def test_what_is_no_template_is_refused(text, modality, message):
    """The message names what is wrong, and what there could be."""
    with pytest.raises(OptionError, match=message) as caught:
        PromptTemplate.parse(text, modality)
    assert caught.value.param == "prompt"
