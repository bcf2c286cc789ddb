"""What an asynchronous engine says of its work: every decode, tile and failure once, and every pending decode's end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import numpy as np
import pytest
import pytest_asyncio
import scene_ends
from observing import Records, answer, until
from processors_for_tests import RELEASE, Echo
from scene_ends import DEADLINE, bad_tile
from scenes_for_tests import TILE, classes, pixels
from vllm.v1.engine.exceptions import EngineDeadError
from water_oracle import scene

from vllm_mmout import OutputParams
from vllm_mmout.engine.observer import SILENT
from vllm_mmout.errors import AbortedError, DecodeError, MMOutError

pytestmark = pytest.mark.engine
TILES = OutputParams(tile=TILE)
ECHO = OutputParams(processor="Echo")


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
