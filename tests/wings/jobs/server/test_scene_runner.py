"""SceneRunner: jobs run in their order, some at a time, and nothing is left of those that are cancelled."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import failing_database
import numpy as np
import pytest
from failures_logged import failures_logged
from PIL import Image
from prometheus_client import REGISTRY
from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine.request_output import Progress
from vllm_mmout.errors import AbortedError, InputError
from vllm_mmout.outputs import ImageOutput, RasterOutput
from vllm_mmout.outputs.partial_images import PreviewRequest
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.wings.jobs.server import runner as runner_module
from vllm_mmout.wings.jobs.server.database import MOST_STARTS
from vllm_mmout.wings.jobs.server.job import SceneInputs
from vllm_mmout.wings.jobs.server.runner import SceneRunner

pytestmark = [pytest.mark.engine]  # its errors know vLLM's
PIXELS = np.arange(12, dtype=np.uint8).reshape(1, 3, 4) % 2
PICTURE = np.full((3, 4, 4), 200, np.uint8)
DEADLINE = 120


@pytest.fixture
def clock():
    """The time as it is."""
    return time.time


@dataclass
class Work:
    """What a request would do, as far as a test lets it; its copies share what the test holds."""

    error: Exception | None = None
    request_id: str = "scene-test"
    request: FormatChoice = field(default_factory=lambda: FormatChoice(as_file=True))
    goes_on: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    watches: list[PreviewRequest] = field(default_factory=list)
    ran_as: list[str] = field(default_factory=list)
    """The request ids under which it ran."""
    at_store: list[Callable[[], object]] = field(default_factory=list)
    """Called when its results are to be stored, of which there are none then."""

    async def running(self, watch):
        """A tile each time that a test says so, of four."""
        self.watches.append(watch)
        self.ran_as.append(self.request_id)
        self.began.set()
        try:
            for done in range(1, 5):
                await self.goes_on.acquire()
                if self.error is not None:
                    raise self.error
                asked = watch.taken()
                progress = Progress(done, 4, 0 if asked else None)
                picture = ImageOutput(PICTURE) if asked else None
                yield SimpleNamespace(finished=False, progress=progress, outputs=picture)
            yield SimpleNamespace(finished=True, progress=Progress(4, 4), outputs=RasterOutput(PIXELS), assumed=())
        finally:
            self.ended.set()

    def made(self, output, make):
        """One processor's."""
        for call in self.at_store:
            call()
        return {} if self.at_store else {("segmentation", None): make(output, FormatChoice(), None)}

    def new_budget(self):
        """That of a server without flags."""
        return AnswerBudget()

    def run_on(self):
        """Let it run to its end."""
        for _ in range(4):
            self.goes_on.release()


def inputs(nbytes=5):
    """An input that says when it is closed."""
    held, closed = ExitStack(), threading.Event()
    held.callback(closed.set)
    made = SceneInputs("data", "n.tif", nbytes, held)
    return made, closed


def again(job):
    """No job of a test is another server's, if it does not say so."""
    raise NotImplementedError(job)


@asynccontextmanager
async def started(board, again=again):
    """A runner that looks after its jobs, and ends with its tasks."""
    runner = SceneRunner(board, again)
    runner.start()
    try:
        yield runner
    finally:
        tasks = [runner._tending, *(one.task for one in runner._running.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(found, what="it never was"):
    """Wait for something."""
    deadline = time.monotonic() + DEADLINE
    while not (value := found()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
    return value


def added(runner, work, given=None, **limits):
    """Add a job."""
    return runner.add(work, (given or inputs())[0], "m", ServingOptions(**limits))


async def test_a_job_runs_to_its_end(board):
    """Its tiles are counted as they come, under its own id; then its result is there and its input closed."""
    async with started(board) as runner:
        work, given = Work(), inputs()
        before = REGISTRY.get_sample_value("mmout:jobs_unfinished")
        job = await added(runner, work, given)
        assert REGISTRY.get_sample_value("mmout:jobs_unfinished") == before + 1
        assert board.get(job.id).status in ("queued", "in_progress")
        await work.began.wait()
        assert board.get(job.id).status == "in_progress"
        for done in range(1, 4):
            work.goes_on.release()
            await until(lambda done=done: board.get(job.id).tiles_done == done)
            assert board.get(job.id).tiles_total == 4
        assert not given[1].is_set()
        assert work.ran_as == [f"{job.id}-scene-test"]
        work.goes_on.release()
        await until(lambda: board.get(job.id).finished)
        seen = board.get(job.id)
        assert (seen.status, seen.tiles_done, seen.outputs[0].processor) == ("completed", 4, "segmentation")
        await until(given[1].is_set)
        await until(lambda: not runner._running)
        assert REGISTRY.get_sample_value("mmout:jobs_unfinished") == before
    assert [path.name for path in board.store.shared.work.iterdir()] == [".lock"]


async def test_jobs_run_in_their_order_some_at_a_time(board):
    """As many run as there are places; the next one begins when one ends, and one that is cancelled never does."""
    async with started(board) as runner:
        works = [Work() for _ in range(7)]
        jobs = [await added(runner, work) for work in works]
        most = runner_module._AT_ONCE
        for work in works[:most]:
            await work.began.wait()
        await asyncio.sleep(0.05)
        assert [work.began.is_set() for work in works] == [True] * most + [False] * (7 - most)
        board.delete(jobs[most].id)
        runner.cancel(jobs[most].id)
        works[2].run_on()
        await asyncio.wait_for(works[most + 1].began.wait(), DEADLINE)
        assert not works[most].began.is_set()
        assert not works[most + 2].began.is_set()
        for work in works:
            work.run_on()
        await until(lambda: all(board.get(job.id) is None or board.get(job.id).finished for job in jobs))
        assert not works[most].began.is_set()


async def test_no_place(board):
    """One job too many is told so, and leaves the places as they are."""
    async with started(board) as runner:
        work, given = Work(), inputs()
        await added(runner, work, max_scenes=1)
        with pytest.raises(ApiError, match=r"1 jobs are waiting or running.*--mmout-max-scenes") as raised:
            await added(runner, Work(), given, max_scenes=1)
        assert (raised.value.status, raised.value.headers) == (429, {"Retry-After": "10"})
        assert not given[1].is_set()  # it is the caller's still


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (InputError("the scene has 5 bands"), 400, "BadRequestError", "5 bands"),
        (ApiError(404, "the address is not there"), 404, "NotFoundError", "not there"),
        (RuntimeError("secret of the server"), 500, "InternalServerError", "scene-test"),
    ],
)
async def test_a_job_that_fails(board, error, status, code, words):
    """It says what a request would have heard, nothing more, and the log has a line of its id and the status."""
    with failures_logged() as lines:
        async with started(board) as runner:
            for _ in range(runner_module._AT_ONCE + 1):
                work, given = Work(error), inputs()
                job = await added(runner, work, given)
                work.run_on()
                await until(given[1].is_set)
                seen = board.get(job.id)
                assert (seen.status, seen.error.code, seen.outputs) == ("failed", code, ())
                (line,) = [line for line in lines if line.startswith(job.id)]
                assert line == f"{job.id} failed with {status}: {seen.error.message}"
                assert words in seen.error.message
                assert "secret" not in seen.error.message


def failed_engine(cause):
    """What a request hears of an engine that has died, or that ends with its server."""
    error = ApiError(503, "the engine of this server has died")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("cause", [EngineDeadError(), AbortedError("the server ends")])
async def test_a_job_whose_engine_failed_is_started_again(board, monkeypatch, cause):
    """By whoever has an engine, here the same server, as often as a job is started; then it has failed."""
    monkeypatch.setattr(runner_module, "_SWEEP_S", 0.0)
    works, given = [Work(failed_engine(cause)) for _ in range(MOST_STARTS)], [inputs() for _ in range(MOST_STARTS)]
    for work in works:
        work.run_on()
    left = iter(zip(works[1:], given[1:], strict=True))

    def again(job):
        assert job.request == "{}"
        work, (made, _) = next(left)
        return work, made

    async with started(board, again) as runner:
        job = await runner.add(works[0], given[0][0], "m", ServingOptions(), request="{}")
        await until(lambda: board.get(job.id).finished)
        for _, closed in given:
            await until(closed.is_set)
    seen = board.get(job.id)
    assert (seen.status, seen.starts, seen.error.code) == ("failed", MOST_STARTS, "ServiceUnavailableError")


async def test_a_job_that_cannot_be_started_again_says_why(board, monkeypatch):
    """Its address may lead to nothing by now."""

    def again(job):
        raise InputError("the file is gone")

    monkeypatch.setattr(runner_module, "_SWEEP_S", 0.0)
    async with started(board, again) as runner:
        work = Work(failed_engine(EngineDeadError()))
        work.run_on()
        job = await runner.add(work, inputs()[0], "m", ServingOptions(), request="{}")
        await until(lambda: board.get(job.id).finished)
    assert board.get(job.id).error.message == "the file is gone"


@pytest.mark.parametrize("by", ["this server", "another server"])
async def test_a_job_that_is_deleted_ends(board, make_board, by):
    """Its work stops at once, or when this server looks; its input is closed, and nothing is left."""
    other = make_board()
    async with started(board) as runner:
        work, given = Work(), inputs()
        job = await added(runner, work, given)
        await work.began.wait()
        if by == "this server":
            board.delete(job.id)
            runner.cancel(job.id)
        else:
            other.delete(job.id)
        await asyncio.wait_for(work.ended.wait(), DEADLINE)
        await until(given[1].is_set)
        await until(lambda: not runner._running)
        runner.cancel(job.id)
    assert [path.name for path in board.store.shared.work.iterdir()] == [".lock"]


@pytest.mark.parametrize("by", ["this server", "another server"])
async def test_who_asks_sees_the_picture_grow(board, make_board, by):
    """A picture comes with the next tile, whole, where every server finds it; it goes with the job."""
    asking = board if by == "this server" else make_board()
    async with started(board) as runner:
        work = Work()
        job = await added(runner, work)
        await work.began.wait()
        work.goes_on.release()
        await until(lambda: board.get(job.id).tiles_done == 1)
        path = SceneRunner(asking, again).preview(board.get(job.id).server, job.id)
        assert not path.exists()
        asking.ask_preview(job.id)
        await until(lambda: work.watches[0]._asked)
        work.goes_on.release()
        await until(path.exists)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            np.testing.assert_array_equal(np.asarray(image), PICTURE)
        work.run_on()
        await until(lambda: board.get(job.id).finished)
        await until(lambda: not path.exists())
    assert [name.name for name in board.store.shared.work.iterdir()] == [".lock"]


async def test_a_job_deleted_while_its_picture_is_made(board, monkeypatch):
    """What a thread writes at that moment does not stay."""
    writing, goes_on, wrote, original = (*(threading.Event() for _ in range(3)), runner_module._PreviewFile.show)

    def show(self, output):
        writing.set()
        assert goes_on.wait(DEADLINE)
        original(self, output)
        wrote.set()

    monkeypatch.setattr(runner_module._PreviewFile, "show", show)
    async with started(board) as runner:
        work, given = Work(), inputs()
        job = await added(runner, work, given)
        await work.began.wait()
        work.watches[0].ask()
        work.goes_on.release()
        await until(writing.is_set)
        board.delete(job.id)
        runner.cancel(job.id)
        await until(given[1].is_set)
        await until(lambda: not runner._running)
        goes_on.set()
        await until(wrote.is_set)
        assert [path.name for path in board.store.shared.work.iterdir()] == [".lock"]


async def test_a_client_that_goes_while_its_job_is_added(board, monkeypatch):
    """No job is left that nobody runs."""
    adding, goes_on, added_it, original = (*(threading.Event() for _ in range(3)), board.add)

    def slow(**given):
        adding.set()
        assert goes_on.wait(DEADLINE)
        job = original(**given)
        added_it.set()
        return job

    monkeypatch.setattr(board, "add", slow)
    async with started(board) as runner:
        task = asyncio.ensure_future(added(runner, Work()))
        await until(adding.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert board.page(10, None, "desc") == ([], False)
        goes_on.set()
        await until(added_it.is_set)
        await until(lambda: board.page(10, None, "desc") == ([], False), "a job is left that nobody runs")


@pytest.fixture(params=["read_only", "lost", "disk_full"])
def breaking(request, tmp_path):
    """A way in which the database fails."""
    with failing_database.small_disk(tmp_path / "results") if request.param == "disk_full" else nullcontext():
        yield getattr(failing_database, request.param)


@pytest.mark.parametrize("when", ["it begins", "a tile is done", "it is stored"])
async def test_a_job_ends_whatever_the_database_does(breaking, make_board, when, caplog):
    """It has failed, as its server says until that can be written; its input is closed, and its place is free."""
    board = make_board()
    async with started(board) as runner:
        work, (given, closed) = Work(), inputs()
        for _ in range(runner_module._AT_ONCE):
            await runner._places.acquire()
        job = await added(runner, work, (given, closed), max_scenes=1)
        with ExitStack() as broken:
            if when == "it begins":
                broken.enter_context(breaking(board))
            for _ in range(runner_module._AT_ONCE):
                runner._places.release()
            if when == "a tile is done":
                await work.began.wait()
                await until(lambda: board.get(job.id).status == "in_progress")
                broken.enter_context(breaking(board))
            if when == "it is stored":
                work.at_store.append(lambda: broken.enter_context(breaking(board)))
            work.run_on()
            await until(closed.is_set)
            await until(lambda: not runner._running)
            failed = board.get(job.id)
            full = breaking is failing_database.disk_full
            kind = "InsufficientStorageError" if full else "InternalServerError"
            assert (failed.status, failed.error.code, failed.outputs) == ("failed", kind, ())
            assert failed.expires_at > failed.completed_at >= failed.created_at
        assert f"job {job.id} failed, but the failure cannot be written to the database yet" in caplog.text
        later = await added(runner, Work(), max_scenes=1)
        assert [one.status for one in board.page(10, later.id, "desc")[0]] == ["failed"]
    seen = make_board().get(job.id)
    assert (seen.status, seen.error, seen.expires_at) == ("failed", failed.error, failed.expires_at)


async def test_a_job_that_nobody_runs_ends_though_it_cannot_be_forgotten(board, monkeypatch):
    """A client goes while its job is added, and the database fails then: the job has failed, its place is free."""
    original = board.add
    with ExitStack() as broken:

        def add(**given):
            job = original(**given)
            broken.enter_context(failing_database.read_only(board))
            task.get_loop().call_soon_threadsafe(task.cancel)
            time.sleep(0.2)
            return job

        monkeypatch.setattr(board, "add", add)
        async with started(board) as runner:
            task = asyncio.ensure_future(added(runner, Work()))
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: [job.status for job in board.page(10, None, "desc")[0]] == ["failed"])
            broken.close()
            monkeypatch.undo()
            await added(runner, Work(), max_scenes=1)


async def test_a_disk_that_fails_for_a_while(board, monkeypatch, caplog):
    """The runner looks after its jobs again when the disk works, and says in between that it could not."""
    original, failed = board.running, threading.Event()

    def running():
        if not failed.is_set():
            failed.set()
            raise OSError(5, "Input/output error")
        return original()

    monkeypatch.setattr(board, "running", running)
    async with started(board) as runner:
        work = Work()
        job = await added(runner, work)
        await until(failed.is_set)
        board.delete(job.id)
        await asyncio.wait_for(work.ended.wait(), DEADLINE)
