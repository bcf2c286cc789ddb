"""What an engine says of its work: every decode, tile and failure once, and every pending decode's end."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import pytest_asyncio
import scene_ends
import torch
from processors_for_tests import RELEASE, Echo
from scene_ends import DEADLINE, bad_tile, wait_for
from scenes_for_tests import TILE, classes, pixels
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError
from water_oracle import echo, scene

from vllm_mmout import OutputParams, errors
from vllm_mmout.engine.async_llm import BoundAsyncLLM
from vllm_mmout.engine.decode import as_it_is
from vllm_mmout.engine.observer import KINDS, OTHER, SILENT, Observer, counted, kind_of
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.engine.routed import Mark
from vllm_mmout.engine.validation import InvalidInputError, InvalidOptionError
from vllm_mmout.errors import AbortedError, DecodeError, MMOutError

pytestmark = pytest.mark.engine
TILES = OutputParams(tile=TILE)
ECHO = OutputParams(processor="Echo")
BUFFER = 24 * 20 * 2 * 4
"""Bytes of the embedded model's answer to a single input of `scene`: float32 [2, 24, 20]."""


class Records(Observer):
    """Keeps what it hears."""

    def __init__(self):
        self.lock = threading.Lock()
        self.pending = []
        """Bytes of each pending decode."""
        self.waited = []
        """Bytes of each decode that has been pending."""
        self.decodes = []
        self.tiles = []
        self.failures = Counter()

    def waits(self, nbytes):
        with self.lock:
            self.pending.append(nbytes)
            self.waited.append(nbytes)

    def settled(self, nbytes):
        with self.lock:
            self.pending.remove(nbytes)  # raises for one that never waited

    def decoded(self, processor, seconds):
        with self.lock:
            self.decodes.append((processor, seconds))

    def tile(self, pixels):
        with self.lock:
            self.tiles.append(pixels)

    def failed(self, processor, kind):
        with self.lock:
            self.failures[processor, kind] += 1


async def until(condition, what):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)
    assert condition(), what


async def answer(engine, data, params=None, request_id=None):
    """The output of one request."""
    return [result async for result in engine.generate(data, params, request_id)][-1].outputs


class TestKinds:
    """The bounded set of kinds."""

    def test_each_error_has_a_kind(self):
        """An error of a request is its own kind, one of vLLM's for a client our own, all else is "other"."""
        requests = [errors.InputError, errors.OptionError, errors.SaveError, errors.RequestError]
        requests += errors.RequestError.__subclasses__()
        for kind in requests:
            assert kind_of(kind("x")) == kind.__name__
        assert kind_of(InvalidInputError("x")) == "InputError"
        assert kind_of(InvalidOptionError("x")) == "OptionError"
        assert kind_of(EngineDeadError()) == "EngineDeadError"
        assert kind_of(VLLMValidationError("x")) == "VLLMValidationError"
        assert [kind_of(error) for error in (KeyError(), errors.HookError("x"), SystemExit())] == [OTHER] * 3
        assert OTHER in KINDS

    def test_an_authors_error_is_of_the_nearest_kind(self):
        """A subclass counts as the class that it is made of."""
        theirs = type("TheirError", (DecodeError,), {})
        assert kind_of(theirs("x")) == "DecodeError"

    def test_a_caller_who_leaves_aborts(self):
        """A cancelled task and a closed generator are no faults of anything."""
        assert [kind_of(asyncio.CancelledError()), kind_of(GeneratorExit())] == ["AbortedError"] * 2

    def test_generate_keeps_its_signature(self):
        """Counting is not seen from outside."""
        assert inspect.isasyncgenfunction(BoundAsyncLLM.generate)
        assert list(inspect.signature(BoundAsyncLLM.generate).parameters)[:4] == [
            "self",
            "prompt",
            "sampling_params",
            "request_id",
        ]
        assert "Yields" in (BoundAsyncLLM.generate.__doc__ or "")


class TestLLM:
    """The synchronous engine, in this process."""

    @pytest.fixture
    def records(self, llm):
        """What is heard of the engine while a test runs."""
        router = llm.llm_engine.output_processor
        router.observer = records = Records()
        yield records
        router.observer = SILENT

    def test_nobody_observes_at_first(self, llm):
        """An engine has the silent observer until somebody sets another."""
        assert llm.llm_engine.output_processor.observer is SILENT

    def test_decodes_are_heard_of_with_their_bytes(self, llm, records):
        """Each waits, with what the engine gave for it, is decoded, and has ended when its result is there."""
        results = llm.generate([scene(seed) for seed in range(5)], ECHO, use_tqdm=False)
        assert [result.outputs for result in results] == [echo(scene(seed)) for seed in range(5)]
        assert [name for name, _ in records.decodes] == ["Echo"] * 5
        assert all(0 <= seconds < DEADLINE for _, seconds in records.decodes)
        assert len(records.waited) == 5
        assert all(BUFFER <= nbytes < BUFFER + 1024 for nbytes in records.waited)
        assert records.pending == []

    def test_a_decode_takes_as_long_as_it_takes(self, llm, records):
        """The seconds are those of the decoder."""
        llm.generate([scene(1), scene(2)], OutputParams(processor="DecodeSleeps"), use_tqdm=False)
        assert len(records.decodes) == 2
        assert all(seconds >= 0.3 for _, seconds in records.decodes)

    @pytest.mark.parametrize("processor", ["DecodeRaises", "DecodeReturnsNone", "DecodeExits", "ReduceRaises"])
    def test_a_failed_decode_ends_and_has_no_seconds(self, llm, records, processor):
        """It is not pending any more."""
        (result,) = llm.generate([scene(1)], OutputParams(processor=processor), use_tqdm=False)
        assert isinstance(result.error, MMOutError)
        assert (len(records.waited), records.pending, records.decodes) == (1, [], [])

    def test_a_decode_for_which_there_is_no_thread(self, llm, records, monkeypatch):
        """Where the system has no thread to spare the request fails, alone, and does not stay pending."""
        pool = llm.llm_engine.output_processor.pool

        def no_thread():
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(pool, "_admit", no_thread)
        (result,) = llm.generate([scene(1)], ECHO, use_tqdm=False)
        assert "can't start new thread" in str(result.error)
        assert (records.pending, llm.llm_engine.output_processor.pending) == ([], {})
        assert len(records.waited) == 1
        monkeypatch.undo()
        assert llm.generate(scene(2), ECHO, use_tqdm=False)[0].outputs == echo(scene(2))

    def test_a_decode_whose_loop_was_closed(self, llm, records):
        """Nobody waits for it, and it does not stay pending."""
        router = llm.llm_engine.output_processor
        loop = asyncio.new_event_loop()
        loop.close()
        mark = Mark(ECHO, as_it_is, loop, router, 0.0)
        state = SimpleNamespace(request_id="gone", external_req_id="gone", queue=None)
        shell = MultimodalRequestOutput("gone", None, [], 0, finished=True)
        router.start_decode(state, mark, shell, torch.zeros(9, dtype=torch.uint8))
        wait_for(lambda: not router.pending, "it has ended")
        assert (records.waited, records.pending) == ([9], [])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm(decode_timeout_s=3.0)
    yield engine
    engine.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def records(engine):
    """What is heard of the engine while a test runs; at its end nothing is pending, nor is anything counted later."""
    router = engine.output_processor
    router.observer = records = Records()
    RELEASE.clear()
    yield records
    RELEASE.set()
    router.observer = SILENT
    assert records.pending == []
    failures = records.failures.copy()
    await until(lambda: not router.pool._running, "no decoder runs")
    assert (records.pending, records.failures, router.pending) == ([], failures, {})


FAILURES = {
    "forward": (scene(1)[:3], {}, ("", "InputError")),
    "missing": ("/nowhere/scene.tif", {}, ("", "InputError")),
    "processor": (scene(1), {"processor": "nobody"}, ("", "OptionError")),
    "folder": (scene(1), {"path": "/nowhere/out.tif"}, ("", "SaveError")),
    "reduce": (scene(1), {"processor": "ReduceRaises"}, ("ReduceRaises", "ReduceError")),
    "reduced": (scene(1), {"processor": "ReduceReturnsList"}, ("ReduceReturnsList", "ReduceError")),
    "decode": (scene(1), {"processor": "DecodeRaises"}, ("DecodeRaises", "DecodeError")),
    "nothing": (scene(1), {"processor": "DecodeReturnsNone"}, ("DecodeReturnsNone", "DecodeError")),
    "exits": (scene(1), {"processor": "DecodeExits"}, ("DecodeExits", "DecodeError")),
    "hangs": (scene(1), {"processor": "DecodeWaits"}, ("DecodeWaits", "DecodeError")),
    "the second": (scene(1), {"processor": ("Echo", "DecodeRaises")}, ("DecodeRaises", "DecodeError")),
    "the first": (scene(1), {"processor": ("ReduceRaises", "Echo")}, ("ReduceRaises", "ReduceError")),
    "hangs beside another": (scene(1), {"processor": ("Echo", "DecodeWaits")}, ("", "DecodeError")),
}


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
class TestAsyncLLM:
    """The asynchronous engine, with processes of its own."""

    @pytest.mark.parametrize(("data", "options", "failure"), FAILURES.values(), ids=FAILURES)
    async def test_a_failed_request_is_counted_once(self, engine, records, data, options, failure):
        """By the processor to blame, where one is, and the kind of its error."""
        with pytest.raises(MMOutError):
            await answer(engine, data, OutputParams(**options))
        assert records.failures == {failure: 1}

    async def test_requests_that_succeed_are_no_failures(self, engine, records):
        """Single inputs with one processor and with several."""
        await asyncio.gather(*(answer(engine, scene(seed), ECHO) for seed in range(6)))
        await answer(engine, scene(7), OutputParams(processor=("Echo", "segmentation")))
        assert Counter(name for name, _ in records.decodes) == {"Echo": 7, "segmentation": 1}
        assert (len(records.waited), records.tiles, records.failures) == (7, [], {})

    async def test_tiles_and_pixels_of_a_scene(self, engine, records):
        """Each tile counts once, each pixel once though tiles overlap, and each tile is decoded."""
        array = pixels(3)
        output = await answer(engine, array, OutputParams(tile=TILE, overlap=6))
        np.testing.assert_array_equal(output.array, classes(array))
        output.close()
        assert len(records.tiles) == len(records.decodes) == len(records.waited) == 4 * 3
        assert sum(records.tiles) == array[0].size
        assert max(records.tiles) - min(records.tiles) <= 1
        assert records.failures == {}

    async def test_tiles_without_an_observation_count_and_are_not_decoded(self, engine, records):
        """The model sees the others alone; all are part of the result."""
        array = pixels(4, 96, 96)
        array[:, :32] = 0
        (await answer(engine, array, OutputParams(tile=TILE, nodata=0))).close()
        assert (len(records.tiles), len(records.decodes), len(records.waited)) == (9, 6, 6)
        assert sum(records.tiles) == 96 * 96

    async def test_tiles_of_several_picks_count_once(self, engine, records, monkeypatch):
        """A tile is done when each pick has joined it."""
        monkeypatch.setattr(Echo, "assemble", scene_ends.indices)
        outputs = await answer(engine, pixels(5), OutputParams(tile=TILE, processor=("segmentation", "Echo")))
        outputs["segmentation"].close()
        assert outputs["Echo"] == list(range(9))
        assert (len(records.tiles), sum(records.tiles), len(records.decodes)) == (9, 75 * 90, 18)

    @pytest.mark.parametrize("processor", ["ReduceRaisesForBright", "ReduceRaises", "DecodeRaises"])
    async def test_a_scene_that_fails_is_one_failure(self, engine, records, monkeypatch, processor):
        """However many tiles of it fail."""
        monkeypatch.setattr(Echo, "assemble", scene_ends.indices)
        with pytest.raises(MMOutError, match=r"^tile "):
            await answer(engine, bad_tile(), OutputParams(tile=TILE, processor=processor))
        kind = "DecodeError" if processor.startswith("Decode") else "ReduceError"
        assert records.failures == {(processor, kind): 1}
        assert len(records.tiles) < 9

    @pytest.mark.parametrize("tile", [scene_ends.raises, scene_ends.exits, scene_ends.returns_none, scene_ends.hangs])
    async def test_a_processor_that_cannot_join_is_to_blame(self, engine, records, monkeypatch, tile):
        """Beside another one that can."""
        monkeypatch.setattr(Echo, "assemble", tile)
        with scene_ends.settings(engine.output_processor, decode_timeout_s=0.5), pytest.raises(DecodeError):
            await answer(engine, pixels(6), OutputParams(tile=TILE, processor=("segmentation", "Echo")))
        assert records.failures == {("Echo", "DecodeError"): 1}

    @pytest.mark.parametrize("how", ["cancelled", "closed", "aborted"])
    async def test_a_request_that_is_given_up_while_it_is_decoded(self, engine, records, how):
        """It is pending until then and not afterwards, though its decoder works on; it counts as aborted, once."""
        stream = engine.generate(scene(8), OutputParams(processor="DecodeWaits"), "mine")
        task = asyncio.create_task(anext(stream))
        await until(lambda: records.pending, "it is being decoded")
        if how == "aborted":
            await engine.abort("mine")
            with pytest.raises(AbortedError):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        if how == "closed":
            await stream.aclose()
        assert records.pending == []
        assert records.failures == {("", "AbortedError"): 1}

    async def test_a_scene_whose_caller_leaves(self, engine, records):
        """It counts as aborted, once, and no tile of it stays pending."""
        stream = engine.generate(pixels(9), OutputParams(tile=8))
        assert not (await anext(stream)).finished
        await stream.aclose()
        assert records.failures == {("", "AbortedError"): 1}

    async def test_a_caller_who_leaves_with_the_result(self, engine, records):
        """Is no failure: of a scene, and of a single input."""
        for data, params in ((pixels(9), TILES), (scene(9), ECHO)):
            stream = engine.generate(data, params)
            async for result in stream:
                if result.finished:
                    break
            await stream.aclose()
        assert records.failures == {}

    async def test_an_engine_that_is_killed(self, make_async_llm):
        """What is in it is counted as that; what is decoded then stays pending until the engine is shut down."""
        engine, records = make_async_llm(decode_timeout_s=DEADLINE), Records()
        try:
            engine.output_processor.observer = records
            RELEASE.clear()
            decoding = asyncio.create_task(answer(engine, scene(1), OutputParams(processor="DecodeWaits")))
            await until(lambda: records.pending, "it is being decoded")
            for process in engine.engine_core.resources.engine_manager.processes:
                os.kill(process.pid, signal.SIGKILL)
            await until(lambda: engine.errored, "the engine is dead")
            with pytest.raises(EngineDeadError):
                await answer(engine, scene(2), ECHO)
            assert records.failures == {("", "EngineDeadError"): 1}
            assert len(records.pending) == 1
        finally:
            engine.shutdown()
        with pytest.raises(AbortedError):
            await decoding
        RELEASE.set()
        assert records.pending == []
        assert records.failures == {("", "EngineDeadError"): 1, ("", "AbortedError"): 1}


async def test_an_error_of_no_kind():
    """It is counted as "other", and goes on as it is."""

    class Engine:
        output_processor = SimpleNamespace(
            observer=Records(), binding=SimpleNamespace(choice=SimpleNamespace(pick=None))
        )

        @counted
        async def generate(self, prompt, sampling_params=None):
            raise LookupError(prompt)
            yield

    with pytest.raises(LookupError, match=r"^what$"):
        await anext(Engine().generate("what"))
    assert Engine.output_processor.observer.failures == {("", OTHER): 1}
