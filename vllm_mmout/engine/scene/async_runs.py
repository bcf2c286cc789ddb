"""AsyncRuns: drives the schedule of an ``AsyncLLM``, and each run in it, whose outputs its `AsyncRun` yields."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from collections.abc import Set as AbstractSet
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from vllm_mmout.engine.hooks.compat import may_be_sent_again
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.scene.backlog import Backlog
from vllm_mmout.engine.scene.budgets import Credits, TileBudget
from vllm_mmout.engine.scene.engine_loads import EngineLoads
from vllm_mmout.engine.scene.schedule import Batch, Schedule
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError
from vllm_mmout.log import logger

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.request import PartInput, Request
    from vllm_mmout.engine.scene.run import Run

Send: TypeAlias = Callable[["Request"], Coroutine[Any, Any, MultimodalRequestOutput]]
"""Sends a part's request to its engine and returns the answer. Cancelling it aborts the part."""

PAUSED_S = 300.0
"""Seconds that an engine may be paused, for example to take new weights, before its scenes fail."""
ASKED_AGAIN_S = 0.5
"""Seconds until a paused engine is asked again; each further wait is twice as long, up to 5."""
SINGLES_S = 1.0
"""Seconds after a single request during which parts give way to the next one."""


class AsyncRuns:
    """The state of a bound ``AsyncLLM`` beside vLLM's own, for a model that answers in one forward."""

    def __init__(self, binding: Binding) -> None:
        settings, engines = binding.settings, binding.engines
        self.credits = Credits(engines * binding.max_in_flight, engines * settings.max_in_flight_bytes)
        self.readers = asyncio.Semaphore(engines * binding.max_in_flight)
        """Limit of inputs that are read or wait for their credit."""
        self.budget = TileBudget(engines * binding.max_tiles, engines * settings.max_tile_bytes)
        self.engines = EngineLoads(engines, binding.first_engine)
        self.schedule = Schedule(binding.max_num_seqs, self.budget, settings.max_scenes, engines=engines)
        self.driven: dict[Run, AsyncRun] = {}
        self.backlog = Backlog()
        self.shut_down = False
        self._singles_until = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    @property
    def scenes(self) -> AbstractSet[Run]:
        """The runs that have not ended."""
        return self.driven.keys()

    def add(self, run: Run) -> None:
        """Accept a run, and look what there is to do."""
        self._loop = asyncio.get_running_loop()
        try:
            self.schedule.add(run)
        except BaseException:
            self.driven[run].ended.set()  # no turn will
            raise
        self.turn()

    def remove(self, run: Run) -> None:
        """Forget a run, for which others may have waited."""
        self.schedule.remove(run)
        self.turn()

    def wake(self) -> None:
        """Have a turn come soon; from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.turn)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._woken = False

    def single(self) -> None:
        """Have parts give way to a single request, and to others that may follow it."""
        self._singles_until = time.monotonic() + SINGLES_S

    @property
    def _gives_way(self) -> bool:
        return time.monotonic() < self._singles_until

    def answered(self, engine: int) -> None:
        """Count a part as one that an engine has answered."""
        self.engines.give(engine)
        if self._gives_way:
            self.wake()

    def turn(self) -> None:
        """Take a turn of the schedule: fail, end and send. Then set the timer of the next turn."""
        self._woken = False
        self.backlog.look()
        try:
            turn = self.schedule.turn(idle=self.engines.idle if self._gives_way else None)
            for run in turn.failed:
                self.driven[run].cancel_parts()
            for run in turn.ended:
                self.driven[run].ended.set()
            for batch in turn.batches:
                engine = self.engines.take(len(batch.parts))
                for run, part in batch.parts:
                    self.driven[run].send(part, batch.mark, engine)
            for run in {*self.schedule.running, *turn.failed, *turn.ended}:
                self.driven[run].news.set()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.schedule.running:
                self._timer = self._loop.call_later(self.schedule.wait_s, self.turn)


class AsyncRun:
    """Drives one run in an event loop, whether or not anybody takes its reports."""

    def __init__(self, runs: AsyncRuns, run: Run, send: Send) -> None:
        self.run = run
        self.news = asyncio.Event()
        """Set when there may be something to report."""
        self.ended = asyncio.Event()
        """Set when the outcome is known."""
        self._runs = runs
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._waited = False
        self._running: asyncio.Task[None] | None = None

    async def results(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run to the end; yield progress, the pictures that were asked for, and last the result."""
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
            if not running.done():  # a second cancellation goes through and leaves the run to its end
                await asyncio.wait({running})
            self.run.discard()
            if self.run.growing is not None:
                self.run.growing.close()
        yield result

    async def _reports(self, running: asyncio.Task[None]) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Yield the progress, until the run has ended and its pictures have been shown."""
        shown, pictures, growing = 0, 0, self.run.growing
        while True:
            ended = running.done()
            progress = self.run.progress  # read before the pictures, so that a picture due by now is taken
            copy = None if growing is None else growing.take()
            picture = None if copy is None else await in_thread(copy.image)
            if copy is not None:
                if self.run.error is not None:  # a run that failed shows no more
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
        """Have a newer picture replace an older one while the caller works on a report."""
        growing = self.run.growing
        if growing is not None:
            growing.awaited = False
        yield
        if growing is not None:
            growing.awaited = True

    def when_done(self, forget: Callable[[], object]) -> None:
        """Call ``forget`` when nothing of the run is left; now, if nothing is."""
        if self._running is None or self._running.done():
            forget()
        else:  # the caller was cancelled a second time
            self._running.add_done_callback(lambda _: forget())

    def abort(self) -> None:
        """End the run from outside."""
        self.run.stop(AbortedError("the request was aborted before its result was delivered"))
        self._runs.schedule.give_up(self.run)
        self._runs.wake()

    async def _run(self) -> None:
        """Wait for the end of the run, and leave nothing behind; also when this task was cancelled."""
        try:
            await self.ended.wait()
        finally:
            try:
                self.run.stop()
                self._runs.remove(self.run)
                self.cancel_parts()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.to_thread(self.run.join_threads)
            finally:
                self.run.close()

    def send(self, part: PartInput, mark: list[int], engine: int) -> None:
        """Send one part of the batch that has this `Batch.mark`."""
        task = asyncio.create_task(self._answered(part, mark, engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._runs.answered(engine))

    async def _answered(self, part: PartInput, mark: list[int], engine: int) -> None:
        self.run.answered(part, await self._answer(part, mark, engine))

    async def _answer(self, part: PartInput, mark: list[int], engine: int) -> MultimodalRequestOutput | BaseException:
        """Return the engine's answer to a part, or the error. A paused engine is asked again, for a time.

        A paused engine refuses parts, keeps them until it goes on, or drops those that it had: ``mode="abort"``.
        """
        until, wait_s = time.monotonic() + PAUSED_S, ASKED_AGAIN_S
        while True:
            answer: MultimodalRequestOutput | BaseException
            try:
                name = f"{self.run.request.request_id}-tile-{part.index}-{uuid4().hex}"  # no other request's
                answer = await self._send(self.run.part_request(part, mark, name, engine))
                error = answer.error
            except Exception as raised:  # noqa: BLE001 - a dead engine too: whatever it is, this run fails with it
                answer = error = raised
            dropped = isinstance(error, AbortedError) and not self.run.stopped
            if not (dropped or may_be_sent_again(error)) or time.monotonic() > until:
                return answer
            if not self._waited:
                self._waited = True
                logger.warning(
                    "%s waits for a paused engine; its tiles may come of two sets of weights",
                    self.run.request.request_id,
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)
            mark = Batch([(self.run, part)]).mark  # the rest of its batch may have run already

    def cancel_parts(self) -> None:
        """Abort the parts that are in flight."""
        for task in self._tasks:
            if not task.cancelling():  # a second time would disturb the clean-up of the first one
                task.cancel()
