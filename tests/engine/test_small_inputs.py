"""Inputs of one forward pass go before scenes, and do not stop them."""

from __future__ import annotations

import asyncio
import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import pytest_asyncio
from observing import DEADLINE, answer, until
from scenes_for_tests import TILE, classes, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.engine.scene import small_inputs
from vllm_mmout.engine.scene.small_inputs import HOLD_S, READ_S, SMALL_BLOCKS_S, SmallInputs
from vllm_mmout.errors import InputError

pytest.importorskip("rasterio", reason="it writes the input")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
SCENE, SMALL = pixels(1), pixels(2, 40, 50)
ENDLESS_S = 1e9


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm()
    yield engine
    engine.shutdown()


class HeldFile(io.BytesIO):
    """An open file whose first read waits until the test goes on."""

    def __init__(self, content):
        super().__init__(content)
        self.asked, self.go = threading.Event(), threading.Event()

    def read(self, *arguments):
        """Wait, and read."""
        self.asked.set()
        assert self.go.wait(DEADLINE)
        return super().read(*arguments)


@pytest.fixture
def small(tmp_path):
    """A small input, which is read when the test says so."""
    file = HeldFile(write(tmp_path / "small.tif", SMALL).read_bytes())
    yield file
    file.go.set()


def hold_without_end(monkeypatch):
    """Hold blocks as long as any input is read, however long that takes."""
    for limit in ("HOLD_S", "READ_S"):
        monkeypatch.setattr(small_inputs, limit, ENDLESS_S)


@pytest.mark.asyncio(loop_scope="module")
class TestAnInputThatIsBeingRead:
    """An `AsyncLLM` with a scene, and another input whose file is slow."""

    async def test_its_scene_sends_no_block_meanwhile(self, engine, small, monkeypatch):
        """All tiles wait until the input was sent. Then both results are right."""
        hold_without_end(monkeypatch)
        asked = asyncio.create_task(answer(engine, small))
        await until(small.asked.is_set, "the input is being read")
        scene = asyncio.create_task(answer(engine, SCENE, OutputParams(tile=TILE)))
        await until(lambda: engine.mmout.schedule._ready, "tiles are ready")
        assert engine.mmout.loads.loads[0].tiles == 0
        small.go.set()
        np.testing.assert_array_equal((await asked).array, classes(SMALL))
        np.testing.assert_array_equal((await scene).array, classes(SCENE))

    async def test_a_slow_file_does_not_stop_a_scene(self, engine, small):
        """The scene ends while the file is still being read."""
        asked = asyncio.create_task(answer(engine, small))
        await until(small.asked.is_set, "the input is being read")
        found = await answer(engine, SCENE, OutputParams(tile=TILE))
        np.testing.assert_array_equal(found.array, classes(SCENE))
        assert not asked.done()
        small.go.set()
        np.testing.assert_array_equal((await asked).array, classes(SMALL))

    async def test_an_input_that_cannot_be_read_holds_nothing_back(self, engine, monkeypatch):
        """Its error releases the scene's blocks."""
        hold_without_end(monkeypatch)
        with pytest.raises(InputError, match="not an image"):
            await answer(engine, b"no image")
        found = await answer(engine, SCENE, OutputParams(tile=TILE))
        np.testing.assert_array_equal(found.array, classes(SCENE))

    async def test_a_cancelled_request_holds_nothing_back(self, engine, small, monkeypatch):
        """Its scene sends blocks again, although the file is still being read."""
        hold_without_end(monkeypatch)
        asked = asyncio.create_task(answer(engine, small))
        await until(small.asked.is_set, "the input is being read")
        asked.cancel()
        found = await answer(engine, SCENE, OutputParams(tile=TILE))
        np.testing.assert_array_equal(found.array, classes(SCENE))


@pytest.fixture
def clock(monkeypatch):
    """A clock of `SmallInputs` that the test sets: a list with the seconds."""
    seconds = [100.0]
    monkeypatch.setattr(small_inputs, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def test_blocks_are_held_until_each_request_was_sent(clock):
    """Scenes are woken at each release, which counts once."""
    woken = []
    inputs = SmallInputs(lambda: woken.append(clock[0]))
    assert inputs.hold_s <= 0
    with inputs.holding_blocks() as release, inputs.holding_blocks() as other:
        assert inputs.hold_s == pytest.approx(HOLD_S)
        clock[0] += HOLD_S / 2
        assert inputs.hold_s == pytest.approx(HOLD_S / 2)
        release()
        release()
        assert inputs.hold_s > 0
        other()
        assert inputs.hold_s <= 0
    assert len(woken) == 2


def test_a_hold_ends_and_the_next_begins_after_a_block(clock):
    """Answers to other blocks do not extend a hold; after it a block is sent and answered before blocks are held."""
    inputs = SmallInputs(lambda: None)
    with inputs.holding_blocks():
        assert inputs.hold_s > 0
        for _ in range(4):
            clock[0] += HOLD_S / 4
            inputs.block_answered()
        assert inputs.hold_s > 0
    with inputs.holding_blocks():
        assert inputs.hold_s > 0
        clock[0] += HOLD_S
        assert inputs.hold_s <= 0
        clock[0] += HOLD_S / 2
        assert inputs.hold_s <= 0
        inputs.block_answered()
        assert inputs.hold_s == pytest.approx(READ_S - 1.5 * HOLD_S)


def test_an_input_that_is_slow_to_read_holds_blocks_only_at_first(clock):
    """Many slow inputs therefore do not slow a scene down."""
    inputs = SmallInputs(lambda: None)
    with inputs.holding_blocks():
        clock[0] += READ_S
        inputs.block_answered()
        assert inputs.hold_s <= 0
        with inputs.holding_blocks():
            assert inputs.hold_s == pytest.approx(HOLD_S)
        assert inputs.hold_s <= 0


def test_blocks_are_small_for_a_while_after_a_small_input(clock):
    """The time begins anew with each input."""
    inputs = SmallInputs(lambda: None)
    assert not inputs.gives_way
    for _ in range(2):
        inputs.arrived()
        clock[0] += 0.9 * SMALL_BLOCKS_S
        assert inputs.gives_way
    clock[0] += SMALL_BLOCKS_S
    assert not inputs.gives_way
