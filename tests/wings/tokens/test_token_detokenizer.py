"""The text of an answer with media in it is the text that vLLM makes of its text tokens alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_layouts import in_steps, integers, streams, token_layouts

pytest.importorskip("vllm", reason="the oracle is vLLM's own detokenizer")

from token_models import BYTES, EOS, FIRST, VOCABULARY, make_tokenizer, special_tokens
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest, detokenizer
from vllm.v1.engine.detokenizer import (
    FastIncrementalDetokenizer,
    IncrementalDetokenizer,
    SlowIncrementalDetokenizer,
)

from vllm_mmout.wings.tokens.engine.outputs import route
from vllm_mmout.wings.tokens.engine.stream import MediaTokenFilter
from vllm_mmout.wings.tokens.layouts import StreamParser

pytestmark = pytest.mark.engine

KINDS = {"fast": FastIncrementalDetokenizer, "slow": SlowIncrementalDetokenizer, "none": IncrementalDetokenizer}
MARKERS = range(5000, 5040)
"""Of the strategies' layouts; here they are tokens that the tokenizer has."""
SPECIAL = sorted(special_tokens())
COMMON = [32, 64, 65, 66, 67, 68, 69, 194, 128, 159, 240]
"""Ids that come often, among them bytes that begin a letter of several, so that stop strings are met."""


@cache
def tokenizer():
    """Of the small models: each byte is a token."""
    from transformers import AutoTokenizer

    folder = Path(mkdtemp())
    make_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def made(kind, request):
    """A request's detokenizer, of the class that vLLM takes for a kind of tokenizer."""
    if kind == "none":
        return IncrementalDetokenizer.from_new_request(None, request)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "slow":
            if hasattr(detokenizer, "uses_fast_detokenizer"):
                patch.setattr(detokenizer, "uses_fast_detokenizer", lambda tokenizer: False)
            else:  # before 0.32
                patch.setattr(detokenizer, "USE_FAST_DETOKENIZER", False)
        return IncrementalDetokenizer.from_new_request(tokenizer(), request)


@dataclass
class Case:
    """An answer in steps, and what is known of each of its tokens."""

    layout: object
    steps: list[list[int]]
    text: list[bool]
    stopped: bool
    """Whether its last token ended it."""

    @property
    def tokens(self):
        return [token for step in self.steps for token in step]

    def said(self):
        """Each step: its tokens, those of them that are text, and whether the last token of all is among them."""
        at = 0
        for index, step in enumerate(self.steps):
            told = self.text[at : at + len(step)]
            at += len(step)
            yield step, [token for token, said in zip(step, told, strict=True) if said], index == len(self.steps) - 1


@st.composite
def cases(draw):
    """Answers in any steps, of text that any tokens of the vocabulary make that are not the layout's."""
    layout = of_this_vocabulary(draw(token_layouts()))
    stream = draw(streams(layout))
    words = st.one_of(
        st.sampled_from([token for token in known if token not in layout.token_ids])
        for known in (COMMON, [*range(BYTES), *SPECIAL, VOCABULARY + 1000])
    )
    tokens = [draw(words) if said else token for token, said in zip(stream.tokens, stream.text, strict=True)]
    told = list(stream.text)
    end = draw(st.sampled_from(["length", "stop token", "the last token"]))
    if end == "stop token":
        tokens.append(draw(st.just(EOS) | words))
        told.append(True)
    steps = draw(st.just([[token] for token in tokens]) | st.builds(lambda: in_steps(draw, tokens)))
    while not steps[-1]:
        steps.pop()
    return Case(layout, steps, told, end != "length")


def of_this_vocabulary(layout):
    """The layout with markers that the tokenizer has."""

    def moved(token):
        return None if token is None else token - MARKERS[0] + FIRST

    markers = {name: tuple(map(moved, getattr(layout, name))) for name in ("begin", "end")}
    layout = replace(layout, **markers, pad=moved(layout.pad), row_end=moved(layout.row_end))
    assert max(layout.token_ids) < VOCABULARY
    return layout


@st.composite
def samplings(draw, case):
    """What bears upon the text: stop strings that are met and such that are not, min_tokens, special tokens."""
    words = [token for token, said in zip(case.tokens, case.text, strict=True) if said]
    met = st.nothing()
    if words:
        start = draw(integers(0, len(words) - 1))
        text = tokenizer().decode(words[start : start + draw(integers(1, 3))])
        met = st.just(text) if text else met
    stop = draw(st.lists(met | st.sampled_from(["a", "ab", "é", "</s>", "\ufffd", " "]), max_size=3))
    return SamplingParams(
        stop=stop,
        min_tokens=draw(integers(0, len(case.tokens))) if draw(st.booleans()) else 0,
        max_tokens=len(case.tokens) + 1,
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        spaces_between_special_tokens=draw(st.booleans()),
    )


def request(sampling, prompt):
    return EngineCoreRequest(
        request_id="one",
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def told(one):
    """What vLLM takes from a detokenizer while an answer goes on."""
    return one.get_next_output_text(finished=False, delta=False), one.get_next_output_text(finished=False, delta=True)


def ended(one):
    """And when it ends."""
    return one.get_next_output_text(finished=True, delta=True), one.get_next_output_text(finished=True, delta=False)


@pytest.mark.parametrize("kind", ["fast", "slow"])
@given(data=st.data())
def test_media_leave_no_trace_in_the_text(kind, data):
    """Deltas, text, stop string and text tokens are those of the text alone; the media's tokens are all kept."""
    case = data.draw(cases())
    sampling = data.draw(samplings(case))
    prompt = data.draw(st.lists(st.sampled_from([*range(BYTES), *SPECIAL]), min_size=1, max_size=4))
    alone = sampling.clone()
    alone.min_tokens = sum(case.text[: sampling.min_tokens])  # tokens of media count, and are not told to vLLM's own
    ours, vllms = made(kind, request(sampling, prompt)), made(kind, request(alone, prompt))
    route(ours, data.draw(st.sampled_from([StreamParser(case.layout), MediaTokenFilter(case.layout.token_ids)])))
    for step, words, last in case.said():
        over = case.stopped and last
        stop = ours.update(step, over)
        assert stop == vllms.update(words, over and case.text[-1])
        assert told(ours) == told(vllms)
        if stop is not None:
            break
    assert ended(ours) == ended(vllms)
    count = ours.num_output_tokens()
    assert ours.output_token_ids == case.tokens[:count]
    text = [token for token, said in zip(case.tokens[:count], case.text, strict=False) if said]
    assert vllms.output_token_ids == text
    assert count == len(case.tokens) or stop is not None


@given(data=st.data())
def test_without_a_tokenizer_all_tokens_are_kept(data):
    """There is no text then, and the tokens are those of the answer."""
    case = data.draw(cases())
    one = made("none", request(data.draw(samplings(case)), [1]))
    route(one, StreamParser(case.layout))
    for step, _, last in case.said():
        assert one.update(step, case.stopped and last) is None
        assert told(one) == ("", "")
    assert ended(one) == ("", "")
    assert one.output_token_ids == case.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_has_the_class_that_is_said(kind):
    """The kinds of the tests above are those that they are called."""
    one = made(kind, request(SamplingParams(), [1]))
    assert type(one) is KINDS[kind]
