"""Run scenes in an ``AsyncLLM``: send their tiles to the engines, report progress, and yield the result.

A plugin's request of many prompts runs like a scene, and each of its prompts like a tile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from vllm_mmout.engine.hooks.compat import may_be_sent_again
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.scene.backlog import Backlog
from vllm_mmout.engine.scene.budgets import Credits, TileBudget
from vllm_mmout.engine.scene.engine_loads import EngineLoads
from vllm_mmout.engine.scene.schedule import Schedule
from vllm_mmout.engine.scene.small_inputs import SmallInputs
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError
from vllm_mmout.log import logger

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.mosaic.async_mosaic import AsyncMosaic
    from vllm_mmout.engine.request.request import PartInput, Request
    from vllm_mmout.engine.scene.run import Run

Send: TypeAlias = Callable[["Request"], Coroutine[Any, Any, MultimodalRequestOutput]]
"""Coroutine function that sends a request for some tiles of a scene to an engine, and returns the engine's output."""

PAUSED_S = 300.0
"""Longest time in seconds that scenes wait for a paused engine, for example while it loads new weights, before they
fail.
"""
ASKED_AGAIN_S = 0.5
"""Seconds before tiles are sent to a paused engine again. Each retry doubles the delay, up to 5 seconds."""


class AsyncRuns:
    """State of all requests of an ``AsyncLLM``: their limits, and the schedule and progress of scenes."""

    def __init__(self, binding: Binding) -> None:
        settings, engines = binding.settings, binding.engines
        self.credits = Credits(engines * binding.max_in_flight, engines * settings.max_in_flight_bytes)
        self.readers = asyncio.Semaphore(engines * binding.max_in_flight)
        """Semaphore that limits how many inputs are being read or are waiting to be sent to the engines."""
        self.budget = TileBudget(engines * binding.max_tiles, engines * settings.max_tile_bytes)
        self.loads = EngineLoads(engines, binding.max_num_seqs, binding.first_engine)
        self.schedule = Schedule(self.loads, self.budget, settings.max_scenes)
        self.driven: dict[Run, AsyncRun] = {}
        """Objects that send the tiles of unfinished scenes to the engines, keyed by scene."""
        self.mosaics: dict[str, AsyncMosaic] = {}
        """Objects that run the scenes of unfinished mosaics, keyed by the mosaic's request id."""
        self.backlog = Backlog()
        self.shut_down = False
        self.small_inputs = SmallInputs(self._wake_scenes)
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def add(self, run: Run) -> None:
        """Add a scene to the schedule, and send its first tiles if the engines have capacity."""
        self._loop = asyncio.get_running_loop()
        try:
            self.schedule.add(run)
        except BaseException:
            self.driven[run].ended.set()  # no turn of the schedule will set it
            raise
        self.turn()

    def remove(self, run: Run) -> None:
        """Remove a scene from the schedule, so that a waiting scene may start."""
        self.schedule.remove(run)
        self.turn()

    def wake(self) -> None:
        """Make the event loop call `turn` soon, which sends the next tiles. May be called from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.turn)
            except RuntimeError:  # the event loop was closed, so no caller waits for a result
                self._woken = False

    def _wake_scenes(self) -> None:
        if self.schedule.running:
            self.wake()

    def answered(self, run: Run, part: PartInput, engine: int, nbytes: int) -> None:
        """Record an engine's answer to a block of tiles. ``nbytes`` is the answer's size, or 0 if the block failed."""
        self.schedule.answered(run, part, engine, nbytes)
        self.small_inputs.block_answered()
        self.wake()

    def turn(self) -> None:
        """Abort failed scenes, end finished scenes, and send the next tiles. Set a timer for the next call."""
        self._woken = False
        self.backlog.look()
        try:
            hold_s = self.small_inputs.hold_s
            turn = self.schedule.turn(gives_way=self.small_inputs.gives_way, holds=hold_s > 0)
            for run in turn.failed:
                self.driven[run].cancel_parts()
            for run in turn.ended:
                self.driven[run].ended.set()
            for run, part, engine in turn.sendings:
                self.driven[run].send(part, engine)
            for run in {*self.schedule.running, *turn.failed, *turn.ended}:
                self.driven[run].news.set()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.schedule.running:
                wait_s = self.schedule.wait_s
                self._timer = self._loop.call_later(min(hold_s or wait_s, wait_s), self.turn)


class AsyncRun:
    """Sender of a scene's tiles in an event loop. The scene goes on even if nobody reads its progress reports."""

    def __init__(self, runs: AsyncRuns, run: Run, send: Send) -> None:
        self.run = run
        self.news = asyncio.Event()
        """Event that is set when there may be new progress to report."""
        self.ended = asyncio.Event()
        """Event that is set when the scene has succeeded or failed."""
        self._runs = runs
        self._send = send
        self._tasks: set[asyncio.Task[int]] = set()
        self._waited = False
        self._running: asyncio.Task[None] | None = None

    async def results(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run the scene. Yield progress reports, some with a preview image, and then the result."""
        self._running = running = asyncio.create_task(self._run())
        running.add_done_callback(lambda _: self.news.set())
        try:
            self._runs.add(self.run)
            async with aclosing(self._reports(running)) as reports:
                async for report in reports:
                    yield report
            await running
            result = self.run.result()
            if result.error is not None:
                raise result.error
        finally:
            if not self.ended.is_set():
                self.abort()
            if not running.done():  # a second cancellation ends this wait, and the run ends by itself
                await asyncio.wait({running})
            self.run.discard()
            if self.run.growing is not None:
                self.run.growing.close()
        yield result

    async def _reports(self, running: asyncio.Task[None]) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Yield progress reports until the scene's processing has ended and each pending preview image was yielded."""
        shown, pictures, growing = 0, 0, self.run.growing
        while True:
            ended = running.done()
            progress = self.run.progress  # read before the picture, so that a picture due at this progress is reported
            copy = None if growing is None else growing.take()
            picture = None if copy is None else await in_thread(copy.image)
            if copy is not None:
                if self.run.error is not None:  # a failed run reports no more pictures
                    continue
                progress = Progress(copy.tiles, progress.total, pictures)
                pictures += 1
            elif ended:
                return
            elif progress.done <= shown:
                await self.news.wait()
                self.news.clear()
                continue
            shown = progress.done
            with self._unattended():
                yield MultimodalRequestOutput(
                    self.run.request.request_id, picture, [], 0, finished=False, progress=progress
                )

    @contextmanager
    def _unattended(self) -> Iterator[None]:
        """Keep only the newest preview image during the ``with`` block, while the client does not take images.

        The block yields a report, and ends when the client asks for the next report.
        """
        growing = self.run.growing
        if growing is not None:
            growing.awaited = False
        yield
        if growing is not None:
            growing.awaited = True

    def when_done(self, forget: Callable[[], object]) -> None:
        """Call ``forget`` when the scene has ended and is cleaned up, or at once if it never began."""
        if self._running is None or self._running.done():
            forget()
        else:  # the caller was cancelled twice, and the task still cleans up
            self._running.add_done_callback(lambda _: forget())

    def abort(self) -> None:
        """Abort the scene."""
        self.run.stop(AbortedError("the request was aborted before its result was delivered"))
        self._runs.schedule.give_up(self.run)
        self._runs.wake()

    async def _run(self) -> None:
        """Wait until the scene has ended. Then abort its unfinished tiles, join its threads and close its input.

        The clean-up also runs if this task is cancelled.
        """
        try:
            await self.ended.wait()
        finally:
            try:
                try:
                    self.run.stop()
                finally:
                    self._runs.remove(self.run)
                self.cancel_parts()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.to_thread(self.run.join_threads)
            finally:
                self.run.close()

    def send(self, part: PartInput, engine: int) -> None:
        """Send a block of tiles to an engine in a task, without waiting for the answer."""
        task = asyncio.create_task(self._answered(part, engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before it starts runs none of its code, so its end is counted here.
        task.add_done_callback(lambda task: self._runs.answered(self.run, part, engine, _answer_bytes(task)))

    async def _answered(self, part: PartInput, engine: int) -> int:
        """Send a block of tiles, record the engine's answer, and return the size of the answer in bytes."""
        answer, nbytes = await self._answer(part, engine)
        self.run.answered(part, answer)
        return nbytes

    async def _answer(self, part: PartInput, engine: int) -> tuple[MultimodalRequestOutput | BaseException, int]:
        """Send a block of tiles. Return the engine's output and its size in bytes, or the error and 0.

        Retry for up to `PAUSED_S` while the engine is paused.

        A paused engine refuses new requests. It keeps those that it has, or drops them if it was paused with the mode
        "abort".
        """
        until, wait_s = time.monotonic() + PAUSED_S, ASKED_AGAIN_S
        while True:
            answer: MultimodalRequestOutput | BaseException
            try:
                name = f"{self.run.request.request_id}-tile-{part.index}-{uuid4().hex}"  # a unique id
                request = self.run.part_request(part, name, engine)
                answer = await self._send(request)
                error = answer.error
            except Exception as raised:  # noqa: BLE001 - any error, even of a dead engine, fails only this run
                answer = error = raised
            dropped = isinstance(error, AbortedError) and not self.run.stopped
            if not (dropped or may_be_sent_again(error)) or time.monotonic() > until:
                measured = error is None and wait_s == ASKED_AGAIN_S  # a pause says nothing about the model
                return answer, request.answer_bytes if measured else 0
            if not self._waited:
                self._waited = True
                logger.warning(
                    "%s waits for a paused engine; its tiles may be computed with two sets of weights",
                    self.run.request.request_id,
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)

    def cancel_parts(self) -> None:
        """Abort the scene's tiles that were sent to engines and not answered."""
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would disturb the clean-up after the first
                task.cancel()


def _answer_bytes(task: asyncio.Task[int]) -> int:
    """Return the result of a finished ``task``: the size in bytes of an answer. Return 0 if the task failed."""
    return 0 if task.cancelled() or task.exception() is not None else task.result()
