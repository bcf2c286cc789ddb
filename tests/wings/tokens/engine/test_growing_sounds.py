"""Sounds that come in chunks through ``AsyncLLM``, to readers of all kinds."""

from __future__ import annotations

import asyncio
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import pytest_asyncio
from pages import all_blocks
from quick_engines import quick_engines
from scripted_tokens import scripted
from token_models import AUDIO_CODES, ENGINE, audio_model
from token_streams import SOUND, of_text
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_mmout import OutputParams
from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.wings.tokens.layouts import Medium

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""
DELTA, CUMULATIVE = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE
FRAME = 16
"""Samples of a frame of the tests' Mimi, whose rate is 800 Hz."""
CHUNK_S = 2 * FRAME / 800
"""Two frames."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory):
    """The engine of a model that writes sounds."""
    folder = audio_model(tmp_path_factory.mktemp("audio") / "singer", threads=1)
    with quick_engines():
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), **{**ENGINE, "max_num_seqs": 16}))
    yield engine
    engine.shutdown()


def sung(frames, seed=0):
    """Codes of any sound, one array a codebook."""
    return np.random.default_rng(seed).integers(0, AUDIO_CODES, (4, frames))


def asked(tokens, kind=DELTA, **options):
    """A request for these tokens, with its sounds in chunks."""
    return OutputParams(chunk_seconds=CHUNK_S, sampling=scripted(tokens, output_kind=kind, **options))


def new_in(outputs, index=0):
    """The chunks of one answer in all its outputs."""
    return [chunk for output in outputs for one in output.outputs if one.index == index for chunk in one.updates]


def joined(chunks):
    return np.concatenate([chunk.samples for chunk in chunks], axis=1)


def check_whole(engine, outputs, codes, index=0):
    """The chunks are the sound of the last output to the last bit, and the decode of its codes but for rounding."""
    last = next(one for one in outputs[-1].outputs if one.index == index)
    (sound,) = last.multimodal
    np.testing.assert_array_equal(joined(new_in(outputs, index)), sound.samples)
    processor = engine.output_processor.binding.processors["codec_audio"]
    whole = processor.decode(Medium(0, 1, tuple(codes), complete=True), OutputParams()).samples
    assert sound.samples.shape == whole.shape
    assert np.abs(sound.samples - whole).max() <= 1e-5 * np.abs(whole).max()


async def all_of(engine, params, name=None):
    """Every output of one request."""
    async with asyncio.timeout(DEADLINE):
        name = name or f"r{random.random()}"  # noqa: S311 - a name
        return [output async for output in engine.generate("sing", params, name)]


async def until_idle(engine):
    """Wait until nothing is left of any request, nor of its sounds."""
    router = engine.output_processor
    async with asyncio.timeout(DEADLINE):
        while router.request_states or router.pending or router.batchers["codec_audio"]._waiting:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
async def test_chunks_come_while_tokens_come(engine, kind, tmp_path):
    """A chunk arrives before the last tokens are generated; joined they are the sound of the last output."""
    codes = sung(30)
    tokens = [*of_text("so: "), *SOUND.build(codes), *of_text(" end")]
    ends = tmp_path / "the last tokens may come"
    outputs, early = [], False
    params = asked(tokens, kind, hold=(len(tokens) - 20, ends))
    async with asyncio.timeout(DEADLINE):
        async for output in engine.generate("sing", params, f"early {kind}"):
            outputs.append(output)
            if new_in([output]) and not ends.exists():
                early = not output.finished
                ends.touch()
    assert early
    assert all(not output.outputs[0].multimodal for output in outputs[:-1])
    check_whole(engine, outputs, codes)
    sound = outputs[-1].outputs[0].multimodal[0]
    assert not sound.partial
    assert {chunk.span[0] for chunk in new_in(outputs)} == {sound.span[0]} == {4}
    text = "".join(one.outputs[0].text for one in outputs) if kind is DELTA else outputs[-1].outputs[0].text
    assert text == "so:  end"


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
async def test_a_slow_reader_gets_every_chunk(engine, kind):
    """Outputs that nobody fetched are merged into one, whose chunks are those of all of them, in order."""
    codes = sung(20, seed=1)
    stream = engine.generate("sing", asked(SOUND.build(codes), kind), f"slow {kind}")
    got = [await anext(stream)]
    await until_idle(engine)
    async for output in stream:
        got.append(output)
        await asyncio.sleep(0.02)
    assert len(got) == 2
    assert len(new_in(got)) > 1
    check_whole(engine, got, codes)


@pytest.mark.parametrize("tokens", [1, 60])
async def test_a_reader_that_goes_leaves_nothing(engine, tokens):
    """Its request is aborted, before its first chunk or after it, and its sound is decoded no further."""
    batcher = engine.output_processor.batchers["codec_audio"]
    stream = engine.generate("sing", asked(SOUND.build(sung(110))), f"gone {tokens}")
    count = 0
    while count < tokens:  # an output holds several tokens where the reader is slow
        count += len((await anext(stream)).outputs[0].token_ids)
    await stream.aclose()
    await until_idle(engine)
    await asyncio.sleep(0.1)  # what was being decoded ends
    calls = batcher.calls
    await asyncio.sleep(0.2)
    assert batcher.calls == calls


async def test_many_readers(engine):
    """Each gets its own sound, whatever its pace; some go away after the first output."""
    chance = random.Random(5)  # noqa: S311 - a test

    async def one(number):
        codes = sung(6 + number % 10, seed=number)
        outputs = []
        stream = engine.generate("sing", asked(SOUND.build(codes), chance.choice([DELTA, CUMULATIVE])), f"m{number}")
        async for output in stream:
            outputs.append(output)
            if number % 5 == 0:
                await stream.aclose()
                return "gone"
            await asyncio.sleep(chance.random() * 0.02)
        check_whole(engine, outputs, codes)
        return "whole"

    async with asyncio.timeout(DEADLINE):
        ended = await asyncio.gather(*(one(number) for number in range(20)))
    assert (ended.count("gone"), ended.count("whole")) == (4, 16)
    await until_idle(engine)


async def test_a_late_decoder_decodes_bounded_pieces(engine, monkeypatch):
    """What waits for a slow decoder is taken by eight chunks at most, each of which has its time; none is lost."""
    processor = engine.output_processor.binding.processors["codec_audio"]
    decode, codes, go_on = processor.decode, sung(60, seed=3), threading.Event()

    def late(medium, params, state=None):
        assert state is None or go_on.wait(DEADLINE)
        return decode(medium, params, state)

    monkeypatch.setattr(processor, "decode", late)
    outputs = []
    async with asyncio.timeout(DEADLINE):
        async for output in engine.generate("sing", asked(SOUND.build(codes)), "late"):
            outputs.append(output)
            if sum(len(output.outputs[0].token_ids) for output in outputs) >= 4 * 50:
                go_on.set()
    monkeypatch.undo()
    assert max(chunk.samples.shape[1] for chunk in new_in(outputs)) == 8 * 2 * FRAME
    check_whole(engine, outputs, codes)


async def test_answers_and_sounds_of_one_request(engine):
    """Each answer has chunks of its own; of several sounds they come one sound after the other."""
    first, second = sung(12, seed=1), sung(9, seed=2)
    tokens = [*SOUND.build(first), *of_text(" and "), *SOUND.build(second)]
    outputs = await all_of(engine, asked(tokens, n=2))
    for index in (0, 1):
        (answer,) = (one for output in outputs for one in output.outputs if one.index == index and one.finish_reason)
        chunks = new_in(outputs, index)
        for sound in answer.multimodal:
            own = [chunk for chunk in chunks if chunk.span[0] == sound.span[0]]
            np.testing.assert_array_equal(joined(own), sound.samples)
        assert joined(chunks).shape[1] == (12 + 9) * FRAME
        assert [chunk.span[0] for chunk in chunks] == sorted(chunk.span[0] for chunk in chunks)
    await until_idle(engine)


async def test_a_sound_that_is_cut_off(engine):
    """The frames that came are there, and the sound says that there should be more; its last chunk is short."""
    codes = sung(30)
    outputs = await all_of(engine, asked(SOUND.build(codes), max_tokens=1 + 4 * 11 + 2))
    check_whole(engine, outputs, codes[:, :11])
    assert outputs[-1].outputs[0].multimodal[0].partial


async def test_a_decoder_that_fails_ends_its_request(engine, monkeypatch, tmp_path):
    """Before the tokens end, with the decoder's error; nothing is left."""
    processor = engine.output_processor.binding.processors["codec_audio"]
    decode, calls = processor.decode, []

    def failing(medium, params, state=None):
        calls.append(medium)
        if len(calls) == 3:
            raise ValueError("no more")
        return decode(medium, params, state)

    monkeypatch.setattr(processor, "decode", failing)
    got, ends = [], tmp_path / "the last token may come"
    stream = engine.generate("sing", asked(SOUND.build(sung(110)), hold=(4 * 100, ends)), "fails")

    async def read():
        async for output in stream:
            got.append(output)  # noqa: PERF401 - they are there when it raises

    with pytest.raises(DecodeError, match="no more"):
        await read()
    ends.touch()
    assert new_in(got)
    await until_idle(engine)
    monkeypatch.undo()
    assert new_in(await all_of(engine, asked(SOUND.build(sung(5)))))


async def test_what_cannot_come_in_chunks_is_refused_first(engine, monkeypatch):
    """A decoder that cannot is an error of the caller's; nothing is sent."""
    processor = engine.output_processor.binding.processors["codec_audio"]
    monkeypatch.setattr(processor, "_chunking", OptionError("it hears all", param="chunk_seconds"))
    with pytest.raises(OptionError, match="it hears all"):
        await all_of(engine, asked(SOUND.build(sung(5))))
    assert not engine.output_processor.request_states


async def test_python_of_the_page(engine):
    """What docs/tokens.md shows gives a sound whose chunks, joined, it is."""
    (block,) = [one for one in all_blocks("python") if one.page == "tokens.md" and "chunk_seconds" in one.text]
    names = {"__name__": "page"}
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102 - the pages are our own
    names["AsyncEngineArgs"] = lambda model: {"models/speaker": engine}[model]
    names["AsyncLLM"] = SimpleNamespace(
        from_engine_args=lambda one: SimpleNamespace(generate=one.generate, shutdown=lambda: None)
    )
    tokens = [*SOUND.build(sung(30)), *of_text("ok")]
    names["SamplingParams"] = lambda max_tokens, **options: scripted(tokens, **options)
    samples, (whole,) = await names["speak"]("The water is rising.")
    np.testing.assert_array_equal(samples, whole.samples)
