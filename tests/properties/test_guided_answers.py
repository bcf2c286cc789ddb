"""Answers that are guided: whatever is sampled of what may come next, media are whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_layouts import ORPHEUS
from token_layouts import TEXT, token_layouts

from vllm_mmout.wings.tokens.guided.guide import KEY, Guide, TokenTracker, layout_of
from vllm_mmout.wings.tokens.layouts import StreamParser

EOS = 7777


@st.composite
def answers(draw, *, alone):
    """An answer of which each token was drawn among those that might come, its layout, and its guide."""
    layout = draw(token_layouts())
    asked = layout
    if layout.grid is None and layout.modality == "image" and draw(st.booleans()):
        asked = replace(layout, grid=(draw(st.integers(1, 4)), draw(st.integers(1, 4))))
    opened = layout.opened or draw(st.booleans())
    least = TokenTracker(Guide.of(asked, alone=alone, opened=opened, budget=0)).least
    budget = least + draw(st.integers(0, 40))
    tracker = TokenTracker(Guide.of(asked, alone=alone, opened=opened, budget=budget, stops=(EOS,)))
    return layout, opened, tracker.guide, sampled(draw, tracker)


def sampled(draw, tracker):
    """Tokens up to the one that ends the answer, or to the end of its budget."""
    tokens = []
    while len(tokens) < tracker.guide.budget:
        allowed = tracker.allowed
        assert allowed is not None, f"nothing may follow {tokens}"
        ranges = [st.integers(first, stop - 1) for first, stop in allowed.media]
        choices = [*ranges, *([st.sampled_from(TEXT)] if allowed.text else []), *map(st.just, allowed.stops)]
        token = draw(st.one_of(choices))
        if token == EOS:
            break
        tokens.append(token)
        tracker.read([token])
    return tokens


def read(layout, opened, tokens):
    """Text and media of an answer, as the engine's frontend finds them."""
    parser = StreamParser(layout, opened=opened)
    text = [token for token, said in zip(tokens, parser.feed(tokens), strict=True) if said]
    assert parser.error is None
    return text, parser.finish()


@settings(max_examples=100)
@given(answers(alone=True))
def test_what_is_sampled_is_one_whole_medium(answer):
    """With ``output="media"``, of any layout and within any budget that has room for a medium."""
    layout, opened, guide, tokens = answer
    text, media = read(layout, opened, tokens)
    assert [medium.complete for medium in media] == [True]
    assert text == [] or layout.text_inside
    assert len(tokens) <= guide.budget


@settings(max_examples=100)
@given(answers(alone=False))
def test_media_among_text_are_whole(answer):
    """With ``output="mixed"`` text stands around them, never in them but where the layout has it there."""
    layout, opened, guide, tokens = answer
    _, media = read(layout, opened, tokens)
    assert all(medium.complete for medium in media)
    assert len(media) >= opened
    assert len(tokens) <= guide.budget


@given(answers(alone=False), st.data())
def test_an_answer_that_is_taken_up_again_goes_on_as_before(answer, data):
    """After a preemption the tokens so far come anew, at once; tokens that vLLM takes back are forgotten."""
    *_, guide, tokens = answer
    cut = data.draw(st.integers(0, len(tokens)))
    step_by_step, at_once = TokenTracker(guide), TokenTracker(guide)
    for token in tokens[:cut]:
        step_by_step.read([token])
    at_once.catch_up(tokens)
    at_once.catch_up(tokens[:cut])
    assert (at_once.seen, at_once.allowed) == (cut, step_by_step.allowed)


@pytest.mark.parametrize("alone", [True, False])
def test_a_guide_travels_as_plain_data(alone):
    """It comes back from the sampling params as it was."""
    made = Guide.of(ORPHEUS, alone=alone, opened=False, budget=9, stops=[1, 2])
    assert Guide.from_args({KEY: made.to_wire()}) == made
    assert layout_of(made.layout) == ORPHEUS
    assert Guide.from_args(None) is None
