"""Scenes of ``AsyncLLM`` that are cancelled, aborted or fail, at any moment: nothing is left, the next one works."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest
import pytest_asyncio
import scene_ends
from processors_for_tests import RELEASE, Echo
from scene_ends import BAD_TILE, DEADLINE, Left, bad_tile, is_bad, settings
from scene_steps import read_nothing_ahead
from scenes_for_tests import TILE, classes, pixels, write
from vllm.v1.engine.exceptions import EngineDeadError
from water_oracle import echo, leftovers, scene

from vllm_mmout import OutputParams
from vllm_mmout.engine.request import input_reading
from vllm_mmout.engine.scene.budgets import TileBudget
from vllm_mmout.errors import AbortedError, DecodeError, InputError, ReduceError

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ECHO = OutputParams(processor="Echo")
GOOD = pixels(8)
TILES = OutputParams(tile=TILE)
MAX_TILES, MAX_SCENES = 12, 2
"""One scene of nine tiles that is held cannot hold all places."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm(max_tiles=MAX_TILES, max_scenes=MAX_SCENES, decode_timeout_s=DEADLINE)
    yield engine
    engine.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(module_engine, tmp_path):
    """The engine; afterwards it is idle, and the next scene is right."""
    RELEASE.clear()
    left = Left(tmp_path)
    try:
        yield module_engine
        RELEASE.set()
        await assert_clean(module_engine, left)
        right = await answer(module_engine, pixels(77), OutputParams(tile=TILE, overlap=6))
        np.testing.assert_array_equal(right.array, classes(pixels(77)))
        right.close()
        await assert_clean(module_engine, left)
    finally:
        RELEASE.set()


async def until(condition, what):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)
    assert condition(), what


async def assert_clean(engine, left):
    """Nothing is left of any scene: no request, no thread, no file, no place in a budget, no slot."""
    await until(lambda: not engine.output_processor.pool._running, "no decoder runs")
    await until(lambda: not leftovers(engine.output_processor), "the engine is idle")
    assert left.all(engine.output_processor) == {}
    budget, credits = engine.mmout.budget, engine.mmout.credits
    assert (budget.used_count, budget.used_bytes, len(budget._turns)) == (0, 0, 0)
    assert (credits.used_count, credits.used_bytes, len(credits._waiting)) == (0, 0, 0)
    assert engine.mmout.driven == {}
    await until(lambda: engine.mmout.schedule.room == MAX_SCENES, "all slots are free")
    others = {task.get_coro().__qualname__ for task in asyncio.all_tasks() if "Scene" in task.get_coro().__qualname__}
    assert others == set()


async def answer(engine, data, params=TILES, request_id=None):
    """The output of one request; what it yields before is its progress."""
    results = [result async for result in engine.generate(data, params, request_id)]
    assert [result.finished for result in results] == [False] * (len(results) - 1) + [True]
    return results[-1].outputs


@asynccontextmanager
async def changed(engine, name="segmentation", **methods):
    """Give a processor other methods for a while."""
    instance = engine.output_processor.binding.processors[name]
    with pytest.MonkeyPatch.context() as patch:
        for method, function in methods.items():
            patch.setattr(instance, method, function.__get__(instance), raising=False)
        yield instance


def holds(go, joined=None):
    """A processor that holds its scene after the first part, until it is let go."""

    def assemble(self, parts, params):
        first = next(parts)
        if joined is not None:
            joined.append(params.nodata)
        go.wait(DEADLINE)
        return sum(1 for _ in parts) + first.index

    return assemble


async def test_progress_goes_up_and_ends_with_the_result(engine):
    """What is reported before the result counts tiles, up to all of them."""
    results = [result async for result in engine.generate(GOOD, TILES)]
    assert [result.finished for result in results] == [False] * (len(results) - 1) + [True]
    done = [result.progress.done for result in results]
    assert done == sorted(done)
    assert (done[-1], {result.progress.total for result in results}) == (9, {9})
    assert [result.outputs for result in results[:-1]] == [None] * (len(results) - 1)
    np.testing.assert_array_equal(results[-1].outputs.array, classes(GOOD))


async def test_one_tile_that_fails(engine, tmp_path):
    """Its scene fails and says which tile it was and where; other scenes and single inputs do not suffer."""
    decode = engine.output_processor.binding.processors["segmentation"].decode

    def fails(self, raw, params, state=None):
        if is_bad(raw):
            raise LookupError("no decode today")
        return decode(raw, params, state)

    bad = OutputParams(tile=TILE, path=str(tmp_path / "out.tif"))
    async with changed(engine, decode=fails):
        requests = [(GOOD, TILES), (bad_tile(), bad), (scene(1), ECHO), (pixels(9), TILES)]
        ended = await asyncio.gather(*(answer(engine, *request) for request in requests), return_exceptions=True)
    assert isinstance(ended[1], DecodeError)
    assert str(ended[1]).startswith(f"{BAD_TILE}: ")
    np.testing.assert_array_equal(ended[0].array, classes(GOOD))
    np.testing.assert_array_equal(ended[3].array, classes(pixels(9)))
    assert ended[2] == echo(scene(1))
    assert list(tmp_path.iterdir()) == []
    for output in (ended[0], ended[3]):
        output.close()


async def test_one_tile_that_fails_in_the_worker(engine, monkeypatch):
    """The same of ``reduce``, with the error that the worker had."""
    monkeypatch.setattr(Echo, "assemble", scene_ends.indices)
    with pytest.raises(ReduceError, match="too bright") as raised:
        await answer(engine, bad_tile(), OutputParams(tile=TILE, processor="ReduceRaisesForBright"))
    assert str(raised.value).startswith(f"{BAD_TILE}: ")


MISBEHAVIOURS = {
    "raises": (scene_ends.raises, "LookupError: no assemble today"),
    "exits": (scene_ends.exits, "SystemExit: 3"),
    "returns None": (scene_ends.returns_none, "returned None"),
    "hangs": (scene_ends.hangs, r"limit of 0\.5 s"),
}


@pytest.mark.parametrize(("assemble", "message"), MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
async def test_a_processor_that_cannot_join(engine, assemble, message):
    """Its scene fails, whatever it did; the loop goes on."""
    async with changed(engine, assemble=assemble):
        with settings(engine.output_processor, decode_timeout_s=0.5), pytest.raises(DecodeError, match=message):
            await answer(engine, GOOD)
    assert await answer(engine, scene(3), ECHO) == echo(scene(3))


async def test_a_file_that_shrinks_while_it_waits(engine, monkeypatch, tmp_path):
    """The first tile that is gone is named."""
    monkeypatch.setattr(engine.mmout.budget, "count", 2)
    read_nothing_ahead(monkeypatch)
    path = write(tmp_path / "in.tif", GOOD, tiled=True, blockxsize=32, blockysize=32, compress="deflate")
    go, joined = threading.Event(), []
    async with changed(engine, assemble=holds(go, joined)):
        task = asyncio.create_task(answer(engine, path))
        await until(lambda: joined, "the first tile is joined")
        with path.open("r+b") as file:
            file.truncate(10)
        go.set()
        with pytest.raises(InputError, match=r"^tile \d of 9 \(rows .*\): .*in\.tif"):
            await task


ENDS = ["cancelled", "closed", "aborted", "cancelled twice"]


async def end(engine, task, stream, how, name):
    """End a scene that runs, one way or another."""
    if how == "aborted":
        await engine.abort(name)
        with pytest.raises(AbortedError):
            await task
        return
    task.cancel()
    if how == "cancelled twice":
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if how == "closed":
        await stream.aclose()


@pytest.mark.parametrize("how", ENDS)
async def test_a_scene_that_is_given_up_while_its_tiles_are_joined(engine, tmp_path, how):
    """No file appears, and its tiles leave the engine."""
    go, joined = threading.Event(), []
    async with changed(engine, assemble=holds(go, joined)):
        params = OutputParams(tile=TILE, path=str(tmp_path / "out.tif"))
        stream = engine.generate(GOOD, params, "mine")

        async def consume():
            return [result async for result in stream]

        task = asyncio.create_task(consume())
        await until(lambda: joined, "the first tile is joined")
        assert len(engine.mmout.driven) == 1
        threading.Timer(0.1, go.set).start()
        await end(engine, task, stream, how, "mine")
        await until(lambda: not engine.mmout.driven and not scene_ends.threads(), "it has ended")
    assert list(tmp_path.iterdir()) == []


async def test_a_generator_that_is_closed_after_some_progress(engine):
    """Who has seen enough closes it, and the scene ends with it."""
    async with aclosing(engine.generate(GOOD, TILES)) as stream:
        async for result in stream:
            assert not result.finished
            break
    assert engine.mmout.driven == {}


@pytest.mark.parametrize("how", ENDS)
async def test_a_scene_that_is_given_up_while_it_waits_for_its_slot(engine, how):
    """Others hold all slots: it ends at once, and later no more scenes run at once than may."""
    go, joined = threading.Event(), []
    async with changed(engine, assemble=holds(go, joined)):
        running = [asyncio.create_task(answer(engine, GOOD)) for _ in range(MAX_SCENES)]
        await until(lambda: len(joined) == MAX_SCENES, "as many run as may")
        stream = engine.generate(GOOD, TILES, "waits")

        async def consume():
            return [result async for result in stream]

        task = asyncio.create_task(consume())
        await until(lambda: len(engine.mmout.driven) == MAX_SCENES + 1, "it waits")
        await asyncio.sleep(0.02)
        await end(engine, task, stream, how, "waits")
        assert not [one for one in running if one.done()]
        await until(lambda: len(engine.mmout.driven) == MAX_SCENES, "it has ended")
        assert engine.mmout.schedule.room == 0
        go.set()
        await asyncio.gather(*running)
    await most_at_once(engine)


async def most_at_once(engine):
    """Run more scenes than may run at once; no more do."""
    running, most = set(), []
    join = type(engine.output_processor.binding.processors["segmentation"]).assemble

    def assemble(self, parts, params):
        running.add(id(parts))
        most.append(len(running))
        output = join(self, parts, params)
        running.discard(id(parts))
        return output

    async with changed(engine, assemble=assemble):
        for output in await asyncio.gather(*(answer(engine, GOOD) for _ in range(6))):
            np.testing.assert_array_equal(output.array, classes(GOOD))
            output.close()
    assert max(most) <= MAX_SCENES
    return max(most)


async def test_no_more_scenes_at_once_than_may(engine):
    """Six that come at once go two by two."""
    assert await most_at_once(engine) == MAX_SCENES


async def test_a_request_that_is_cancelled_while_its_input_is_opened(engine, tmp_path, monkeypatch):
    """What the thread opens afterwards is closed."""
    path = write(tmp_path / "in.tif", GOOD)
    opening, go, opened = threading.Event(), threading.Event(), []
    prepare = input_reading.prepare

    def slow(*args, **options):
        opening.set()
        go.wait(DEADLINE)
        opened.append(prepare(*args, **options))
        return opened[0]

    monkeypatch.setattr("vllm_mmout.engine.request.async_llm.prepare", slow)
    task = asyncio.create_task(answer(engine, path))
    await until(opening.is_set, "it is being opened")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await until(lambda: opened and opened[0].view.raster.closed, "it is closed")


async def test_single_inputs_pass_scenes(engine):
    """Scenes that hold all slots and all places, and others that wait, hold up no single input."""
    go, joined = threading.Event(), []
    async with changed(engine, assemble=holds(go, joined)):
        scenes = [asyncio.create_task(answer(engine, GOOD)) for _ in range(5)]
        await until(lambda: len(joined) == MAX_SCENES, "as many run as may")
        singles = await asyncio.gather(*(answer(engine, scene(seed), ECHO) for seed in range(20)))
        assert singles == [echo(scene(seed)) for seed in range(20)]
        assert not [one for one in scenes if one.done()]
        go.set()
        await asyncio.gather(*scenes)


async def test_the_budget_is_kept_over_several_scenes(engine, monkeypatch):
    """Whatever scenes come, never more tiles are in flight than may be, and as many as may are."""
    most, take = [], TileBudget.take

    def watched(self, nbytes, stopped, count=1):
        taken = take(self, nbytes, stopped, count)
        most.append((self.used_count, self.used_bytes))
        return taken

    monkeypatch.setattr(TileBudget, "take", watched)
    monkeypatch.setattr(engine.mmout.budget, "count", 4)
    outputs = await asyncio.gather(*(answer(engine, pixels(seed)) for seed in range(5)))
    for seed, output in enumerate(outputs):
        np.testing.assert_array_equal(output.array, classes(pixels(seed)))
        output.close()
    assert len(most) == 5 * 9
    assert max(most) == (4, 4 * TILE * TILE * 6 * 2)


async def test_thirty_ends_at_any_moment(engine, tmp_path):
    """Cancelled, closed or aborted whenever it may be, beside single inputs and another scene, which are right."""
    random = np.random.default_rng(0)
    path = write(tmp_path / "in.tif", GOOD, tiled=True, blockxsize=32, blockysize=32, compress="deflate")
    folder = tmp_path / "out"
    folder.mkdir()
    left = Left(tmp_path, folder)
    loop = asyncio.get_running_loop()
    started = loop.time()
    (await answer(engine, path)).close()
    whole = 1.2 * (loop.time() - started)
    given_up = 0
    for number in range(30):
        params = OutputParams(tile=TILE, overlap=4, path=str(folder / f"{number}.tif"))
        task = asyncio.create_task(answer(engine, path, params, f"random-{number}"))
        beside = [asyncio.create_task(answer(engine, scene(number), ECHO))]
        if number % 3 == 0:
            beside.append(asyncio.create_task(answer(engine, pixels(number))))
        await asyncio.sleep(random.uniform(0, whole))
        if number % 2:
            await engine.abort(f"random-{number}")
        else:
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, BaseException):
            given_up += 1
            assert isinstance(ended, AbortedError if number % 2 else asyncio.CancelledError), repr(ended)
        else:
            np.testing.assert_array_equal(ended.array, classes(GOOD))
            ended.close()
        single, *others = await asyncio.gather(*beside)
        assert single == echo(scene(number))
        for other in others:
            np.testing.assert_array_equal(other.array, classes(pixels(number)))
            other.close()
        del ended, task, beside
        await assert_clean(engine, left)
        for file in folder.iterdir():
            assert file.name in (f"{number}.tif", f"{number}.tif.aux.xml", f"{number}.qml")
            file.unlink()
    assert given_up >= 10


async def test_shutdown_in_the_middle_of_scenes(module_engine, tmp_path):
    """Those that run and those that wait end with an error; nothing is left. The last test: it ends the engine."""
    engine, left = module_engine, Left(tmp_path)
    go, joined = threading.Event(), []
    async with changed(engine, assemble=holds(go, joined)):
        params = [OutputParams(tile=TILE, path=str(tmp_path / f"{number}.tif")) for number in range(4)]
        scenes = [asyncio.create_task(answer(engine, GOOD, one)) for one in params]
        await until(lambda: len(joined) == MAX_SCENES and len(engine.mmout.driven) == 4, "two run, two wait")
        engine.shutdown()
        go.set()
        async with asyncio.timeout(DEADLINE):
            ended = await asyncio.gather(*scenes, return_exceptions=True)
    assert [type(one) for one in ended] == [AbortedError] * 4
    await until(lambda: not scene_ends.threads(), "their threads have ended")
    assert left.all(engine.output_processor, but={"request_states"}) == {}
    assert (engine.mmout.budget.used_count, engine.mmout.driven) == (0, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((EngineDeadError, AbortedError)):
        await answer(engine, GOOD)
