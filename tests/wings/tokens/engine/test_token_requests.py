"""Requests for tokens through ``LLM``: lists of prompts, what ends while a decoder works, and what vLLM counts."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
from model_folders import kept_engine
from scripted_tokens import scripted, up_to_the_stop
from token_models import ENGINE, image_model
from token_streams import PICTURE, codes, fail_on, in_one_step, of_text

from vllm_mmout import OutputParams
from vllm_mmout.errors import DecodeError
from vllm_mmout.wings.tokens.engine.outputs import TokenRequestOutput

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    """The engine of a model that writes pictures."""
    folder = image_model(tmp_path_factory.mktemp("image") / "painter")
    return kept_engine(folder, **ENGINE)


@pytest.fixture
def router(painter):
    """Its output processor."""
    return painter.llm_engine.output_processor


DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""
DRAWN = PICTURE.build((codes(2, 2),))


def test_options_are_of_every_prompt_of_a_list(painter):
    """One `OutputParams` for all prompts, and one for several conversations, holds for each of them."""
    params = OutputParams(sampling=scripted(DRAWN, skip_special_tokens=False), output="none")
    for answers in (
        painter.generate(["a", "b", "c"], params, use_tqdm=False),
        painter.generate(["a", "b", "c"], [params] * 3, use_tqdm=False),
        painter.chat([[{"role": "user", "content": one}] for one in "abc"], params, chat_template="x", use_tqdm=False),
    ):
        assert [result.outputs[0].text.count("<boi>") for result in answers] == [1, 1, 1]
        assert [getattr(result.outputs[0], "multimodal", []) for result in answers] == [[], [], []]
    drawn = painter.generate(["a", "b"], OutputParams(sampling=scripted(DRAWN)), use_tqdm=False)
    assert [len(result.outputs[0].multimodal) for result in drawn] == [1, 1]


def test_a_result_is_waited_for_while_it_is_made(painter, router, monkeypatch):
    """Between its decode and its delivery a result is neither pending nor ready; nobody sees it so."""
    processor = router.binding.processors["vq_image"]
    decode_batch, made, take_ready = processor.decode_batch, router._last_output, router.take_ready
    decodes, makes = threading.Event(), threading.Event()

    def decode(media):
        assert decodes.wait(DEADLINE)
        return decode_batch(media)

    def slowly(state):
        makes.set()
        time.sleep(0.3)
        return made(state)

    def taken():
        ready = take_ready()
        if router.pending and not decodes.is_set():  # just before the caller asks whether anything is left
            decodes.set()
            assert makes.wait(DEADLINE)
        return ready

    monkeypatch.setattr(processor, "decode_batch", decode)
    monkeypatch.setattr(router, "_last_output", slowly)
    monkeypatch.setattr(router, "take_ready", taken)
    (result,) = painter.generate("draw", scripted(DRAWN), use_tqdm=False)
    assert makes.is_set()
    assert len(result.outputs[0].multimodal) == 1
    assert not painter.llm_engine.has_unfinished_requests()


@up_to_the_stop
def test_an_error_behind_a_stop_string_is_none(painter, monkeypatch):
    """Where a step brings several tokens, vLLM drops those behind a stop string; what is wrong with them is nothing."""
    tokens = [*DRAWN, *of_text("stop"), PICTURE.first]
    in_one_step(monkeypatch, painter, tokens)
    (result,) = painter.generate("draw", scripted(tokens[:1], stop=["stop"]), use_tqdm=False)
    assert result.outputs[0].stop_reason == "stop"
    assert [picture.span for picture in result.outputs[0].multimodal] == [(0, len(DRAWN))]


def test_requests_that_were_queued(painter, router, monkeypatch):
    """What ``wait_for_completion`` gives is as of ``generate``: a failed one says so, others have pictures."""
    fail_on(monkeypatch, router, (1, 9))
    bad = PICTURE.build((codes(1, 9),))
    painter.enqueue(["a", "b"], [scripted(DRAWN), scripted(bad)], use_tqdm=False)
    drawn, failed = painter.wait_for_completion(use_tqdm=False)
    assert len(drawn.outputs[0].multimodal) == 1
    assert isinstance(failed, TokenRequestOutput)
    with pytest.raises(DecodeError, match="no pictures of"):
        _ = failed.outputs


def test_a_prompt_of_token_ids_is_one(painter, router, monkeypatch):
    """A list of numbers is one prompt, whose error is raised."""
    fail_on(monkeypatch, router, (1, 9))
    with pytest.raises(DecodeError, match="no pictures of"):
        painter.generate([97, 98], scripted(PICTURE.build((codes(1, 9),))), use_tqdm=False)


def test_a_prompt_that_begins_the_picture(painter):
    """Of a model whose layout says nothing of prompts; where text follows all the same, that is the answer."""
    tokens = PICTURE.build((codes(2, 2),), opened=True)
    drawn, said = painter.generate(["draw<boi>"] * 2, [scripted(tokens), scripted(of_text("no"))], use_tqdm=False)
    (picture,) = drawn.outputs[0].multimodal
    assert (picture.span, picture.partial, drawn.outputs[0].text) == ((0, len(tokens)), False, "")
    assert (said.outputs[0].multimodal, said.outputs[0].text) == ([], "no")


def test_text_of_a_model_whose_prompts_begin_pictures(painter, router, monkeypatch):
    """A request for text is no error there, and the text is whole; a picture may follow it."""
    processor = router.binding.processors["vq_image"]
    monkeypatch.setattr(processor, "layout", dataclasses.replace(processor.layout, opened=True))
    sent = [scripted(of_text("words")), scripted([*of_text("see: "), *DRAWN]), scripted(DRAWN[1:])]
    words, both, drawn = (result.outputs[0] for result in painter.generate(["a"] * 3, sent, use_tqdm=False))
    assert [answer.text for answer in (words, both, drawn)] == ["words", "see: ", ""]
    assert [[one.span for one in answer.multimodal] for answer in (words, both, drawn)] == [
        [],
        [(5, 5 + len(DRAWN))],
        [(0, len(DRAWN) - 1)],
    ]
