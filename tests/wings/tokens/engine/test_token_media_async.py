"""Pictures out of generated tokens through ``AsyncLLM``, whose engine is in another process."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import numpy as np
import pytest
import pytest_asyncio
from quick_engines import quick_engines
from scripted_tokens import scripted
from token_models import ENGINE, ROW_END, image_model
from token_streams import PICTURE, TEXT, codes, fail_on, of_text, seen
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_mmout import OutputParams
from vllm_mmout.errors import AbortedError, DecodeError, OptionError, TokenError

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""
DELTA, LAST = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that writes pictures."""
    return image_model(tmp_path_factory.mktemp("image") / "painter")


def started(folder, **table):
    """An engine of the folder, with prompts that are cut into chunks, and prefixes that are kept."""
    arguments = {**ENGINE, "enable_prefix_caching": True, "max_num_batched_tokens": 32, "max_num_seqs": 16}
    with quick_engines():
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(str(folder), additional_config={"mmout": table} if table else {}, **arguments)
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder):
    """The bound engine of this module."""
    engine = started(folder)
    yield engine
    engine.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(folder):
    """The same model on vLLM as it is."""
    engine = started(folder, output_processor="none")
    yield engine
    engine.shutdown()


async def all_of(engine, params, prompt="draw", name=None):
    """Every output of one request."""
    name = name or f"r{random.random()}"  # noqa: S311 - a name
    async with asyncio.timeout(DEADLINE):
        return [output async for output in engine.generate(prompt, params, name)]


def idle(engine):
    """Whether nothing is left of any request."""
    router = engine.output_processor
    return not (router.request_states or router.pending or router.parent_requests or router.external_req_ids)


async def until_idle(engine):
    """Wait until nothing is left of any request."""
    async with asyncio.timeout(DEADLINE):
        while not idle(engine):  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.01)
    assert idle(engine)


COMPILED = pytest.param({"logprobs": 2}, marks=pytest.mark.slow)
"""Log-probabilities, for which vLLM compiles in each engine."""


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"stop": ["e", "q"]}, COMPILED, {"stream_interval": 4}])
async def test_deltas_of_text_are_vllms(engine, plain, options):
    """Joined, they are the text, tokens and log-probabilities of vLLM without us; nothing of ours is in them."""
    prompt = "a rather long prompt that is cut into chunks, " * 3
    # No seed: with one, and a prompt in chunks, vLLM fails on a CPU (it sets the offset of a generator that has none).
    params = SamplingParams(
        max_tokens=12, temperature=1.0, top_k=1, allowed_token_ids=TEXT, output_kind=DELTA, **options
    )
    texts = []
    for one in (engine, plain):
        for _ in range(2):  # the second one finds its prefix in the cache
            answers = {}
            for output in await all_of(one, params, prompt):
                for completion in output.outputs:
                    answer = answers.setdefault(completion.index, {"text": "", "tokens": [], "logprobs": []})
                    answer["text"] += completion.text
                    answer["tokens"] += completion.token_ids
                    answer["logprobs"] += completion.logprobs or []
                    answer["reason"] = (completion.finish_reason, completion.stop_reason)
                    assert getattr(completion, "multimodal", []) == []
            texts.append(answers)
    assert texts[0][0]["text"]
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.parametrize("kind", [DELTA, RequestOutputKind.CUMULATIVE])
async def test_previews_come_before_their_picture(engine, kind):
    """Rows that are whole, those below grey, at the picture's size; also to who reads late; then the picture."""
    grid = codes(12, 3)
    for pace in (0.01, 0.1, 1.0):  # seconds a token: on a busy machine a picture may end before a preview is decoded
        sampling = scripted(PICTURE.build((grid,)), pace=pace, output_kind=kind)
        params = OutputParams(partial_images=3, grid=(12, 3), sampling=sampling)
        outputs = engine.generate("draw", params, f"previews {kind} {pace}")
        got = [await anext(outputs)]
        await asyncio.sleep(0.3)
        got += [output async for output in outputs]
        previews = [preview for output in got for preview in output.outputs[0].updates]
        if previews:
            break
    (whole,) = (await all_of(engine, scripted(PICTURE.build((grid,)))))[-1].outputs[0].multimodal
    assert 1 <= len(previews) <= 3
    rows = [preview.span[1] // 4 for preview in previews]
    assert rows == sorted(set(rows))
    for preview, count in zip(previews, rows, strict=True):
        assert preview.array.shape == whole.array.shape
        assert preview.partial
        assert (preview.array[2 * count :] == 128).all()
        assert not (preview.array[: 2 * count] == 128).all()
    np.testing.assert_array_equal(got[-1].outputs[0].multimodal[0].array, whole.array)
    await until_idle(engine)


async def test_previews_need_the_rows_of_a_picture(engine):
    """A layout of any number of rows tells none; nothing is sent."""
    with pytest.raises(OptionError, match="painter may write any number; set grid in its layout") as raised:
        await all_of(engine, OutputParams(partial_images=1))
    assert raised.value.param == "partial_images"
    assert idle(engine)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_a_picture_comes_with_the_end(engine, plain, kind):
    """Whatever outputs are asked for: the texts are vLLM's, and the last one holds the picture."""
    tokens = [*of_text("look: "), *PICTURE.build((codes(2, 3),)), *of_text(" there")]
    ours, theirs = [await all_of(one, scripted(tokens, output_kind=kind)) for one in (engine, plain)]
    joined = ["".join(output.outputs[0].text for output in outputs) for outputs in (ours, theirs)]
    if kind is DELTA:
        assert joined == ["look:  there"] * 2
    else:
        assert [outputs[-1].outputs[0].text for outputs in (ours, theirs)] == ["look:  there"] * 2
        assert seen(ours[-1].outputs[0]) == seen(theirs[-1].outputs[0])
    assert [len(output.outputs[0].multimodal) for output in ours] == [0] * (len(ours) - 1) + [1]
    assert [output.finished for output in ours] == [False] * (len(ours) - 1) + [True]
    start, stop = ours[-1].outputs[0].multimodal[0].span
    assert tokens[start:stop] == PICTURE.build((codes(2, 3),))


async def test_a_reader_that_comes_late_gets_the_picture(engine):
    """Deltas that nobody fetched are merged into one, which holds what all of them held."""
    tokens = [*of_text("look: "), *PICTURE.build((codes(2, 3),)), *of_text(" there")]
    outputs = engine.generate("draw", scripted(tokens, output_kind=DELTA), "late")
    got = [await anext(outputs)]
    await until_idle(engine)
    got += [output async for output in outputs]
    assert "".join(output.outputs[0].text for output in got) == "look:  there"
    assert len(got[-1].outputs[0].multimodal) == 1
    assert got[-1].finished


async def test_answers_of_one_request_wait_for_each_other(engine):
    """With n and deltas, the request is finished with its last answer, each of which has its picture."""
    grid = codes(2, 2)
    outputs = await all_of(engine, scripted(PICTURE.build((grid,)), n=3, output_kind=DELTA))
    media = {
        completion.index: completion.multimodal
        for output in outputs
        for completion in output.outputs
        if completion.finish_reason
    }
    assert sorted(media) == [0, 1, 2]
    assert all(len(pictures) == 1 for pictures in media.values())
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    await until_idle(engine)


async def test_who_aborts_gets_what_is_whole(engine):
    """An abort from elsewhere ends the stream as vLLM ends it; the rows that were there come, and say it."""
    tokens = PICTURE.build((codes(60, 6),))
    outputs = engine.generate("draw", scripted(tokens, pace=0.01, output_kind=RequestOutputKind.CUMULATIVE), "aborted")
    got = []
    async for output in outputs:
        got.append(output)
        if len(output.outputs[0].token_ids) >= 40:
            await engine.abort("aborted")
    last = got[-1].outputs[0]
    assert last.finish_reason == "abort"
    (picture,) = last.multimodal
    assert picture.partial
    assert 5 <= picture.height / 2 <= 60
    await until_idle(engine)


async def test_tokens_outside_the_layout(engine):
    """The request raises what is wrong, its other answers with it; the engine works no further on it."""
    tokens = [*PICTURE.build((codes(1, 2),)), ROW_END, *of_text("and so on " * 30)]
    for options in ({}, {"n": 3}, {"output_kind": LAST}):
        with pytest.raises(TokenError, match=f"token {ROW_END} at position 5"):
            await all_of(engine, scripted(tokens, **options))
    await until_idle(engine)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_decoder_that_fails(engine, monkeypatch, n):
    """Its request raises the decoder's error, all answers at once; one beside it has its picture, nothing is left."""
    fail_on(monkeypatch, engine.output_processor, (1, 9))
    good, bad = (
        all_of(engine, scripted(PICTURE.build((codes(*grid),)), n=n, output_kind=LAST)) for grid in ((2, 2), (1, 9))
    )
    outputs, error = await asyncio.gather(good, bad, return_exceptions=True)
    assert [len(one.multimodal) for one in outputs[-1].outputs] == [1] * n
    assert isinstance(error, DecodeError)
    assert "no pictures" in str(error)
    assert isinstance(error.__cause__, ValueError)
    await until_idle(engine)


@pytest.mark.parametrize("n", [1, 2])
async def test_vllm_counts_no_request_that_was_delivered(engine, monkeypatch, n):
    """Several API servers tell each other how many they have: none, once all is delivered, or has failed."""
    router, told = engine.output_processor, []
    monkeypatch.setattr(router, "admission_stats", SimpleNamespace(set_num_requests=told.append))
    await all_of(engine, scripted(PICTURE.build((codes(2, 2),)), n=n, output_kind=LAST))
    await until_idle(engine)
    assert (max(told), told[-1]) == (n, 0)
    fail_on(monkeypatch, router, (2, 2))
    with pytest.raises(DecodeError, match="no pictures"):
        await all_of(engine, scripted(PICTURE.build((codes(2, 2),)), n=n, output_kind=LAST))
    await until_idle(engine)
    assert told[-1] == 0


@pytest.mark.parametrize("pause", [0, 0.3])
async def test_input_that_streams_in_stays_vllms(engine, plain, pause):
    """Pieces of a prompt, whose end comes before and after the engine's answer: as vLLM, and nothing is left."""
    from vllm.engine.protocol import StreamingInput

    async def pieces():
        for part in ("one", "two"):
            yield StreamingInput({"prompt_token_ids": of_text(part)})
            await asyncio.sleep(pause)

    params = SamplingParams(max_tokens=5, temperature=0, allowed_token_ids=TEXT, output_kind=DELTA)
    texts = [
        "".join(output.outputs[0].text for output in await all_of(one, params, pieces(), f"pieces {pause}"))
        for one in (engine, plain)
    ]
    assert texts[0] == texts[1] != ""
    await until_idle(engine)
    assert await all_of(engine, scripted(PICTURE.build((codes(1, 2),))))


async def test_options_are_checked_first(engine):
    """What cannot be honoured is the caller's mistake, and nothing is sent."""
    with pytest.raises(OptionError, match="bands is not for painter"):
        await all_of(engine, OutputParams(bands=[1]))
    assert idle(engine)


async def test_a_hundred_at_once(engine):
    """Some are cancelled at random: every answer is its own, and nothing is left of any."""
    chance = random.Random(7)  # noqa: S311 - a test
    drawn = {}

    async def one(number):
        grid = codes(2, 2, seed=number)
        tokens = [*of_text(f"{number}: "), *PICTURE.build((grid,))]
        prompt, tokens = f"draw {number}", tokens if number % 5 else of_text(f"no picture {number}")
        if chance.random() < 0.3:
            try:
                async with asyncio.timeout(chance.random() / 2):
                    await all_of(engine, scripted(tokens * 3), prompt)
            except (TimeoutError, AbortedError):
                return "cancelled"
            return "done before"
        output = (await all_of(engine, scripted(tokens, output_kind=LAST), prompt))[-1]
        (answer,) = output.outputs
        if number % 5 == 0:
            assert (answer.text, answer.multimodal) == (f"no picture {number}", [])
        else:
            assert answer.text == f"{number}: "
            (drawn[number],) = answer.multimodal
        return "done"

    ended = await asyncio.gather(*(one(number) for number in range(100)))
    assert ended.count("cancelled") > 5
    assert ended.count("done") > 50
    for number, picture in drawn.items():
        grid = codes(2, 2, seed=number)
        processor = engine.output_processor.binding.processors["vq_image"]
        (expected,) = processor.decode_batch([_medium(grid)])
        assert np.abs(picture.array.astype(int) - expected.array).max() <= 1, number
    await until_idle(engine)


def _medium(grid):
    from vllm_mmout.wings.tokens.layouts.parser import Medium

    return Medium(start=0, stop=1, codes=(grid,), complete=True, grid=grid.shape)
