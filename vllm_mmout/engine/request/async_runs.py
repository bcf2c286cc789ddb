"""AsyncRuns: the driver of an ``AsyncLLM``'s schedule; each run's reports and result are taken from its `AsyncRun`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from vllm_mmout.engine.hooks.compat import may_be_sent_again
from vllm_mmout.engine.observer import Observer
from vllm_mmout.engine.parts.backlog import Backlog
from vllm_mmout.engine.parts.budgets import Credits, TileBudget
from vllm_mmout.engine.parts.engines import EngineLoads
from vllm_mmout.engine.parts.parts_request import Driver
from vllm_mmout.engine.parts.schedule import Batch, Run, Schedule
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError
from vllm_mmout.log import logger

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.parts.parts_request import PartedRequest
    from vllm_mmout.engine.request.request import PartInput, Request
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.outputs.partial_images import PreviewRequest

Send: TypeAlias = Callable[["Request"], Coroutine[Any, Any, MultimodalRequestOutput]]
"""Sends a part's request to its engine and returns the answer. Cancelling it aborts the part."""

PAUSED_S = 300.0
"""Seconds that an engine may be paused, while it takes new weights for example, before a scene fails with it."""
ASKED_AGAIN_S = 0.5
"""Seconds until it is asked for the first time; each further time takes twice as long, up to 5."""
SINGLES_S = 1.0
"""Seconds after a single request for which others are reckoned with."""


class AsyncRuns:
    """What a bound ``AsyncLLM`` whose model answers in one forward keeps beside what vLLM's has."""

    def __init__(self, binding: Binding) -> None:
        settings, engines = binding.settings, binding.engines
        self.credits = Credits(engines * binding.max_in_flight, engines * settings.max_in_flight_bytes)
        self.readers = asyncio.Semaphore(engines * binding.max_in_flight)
        """Inputs that may be read, or wait for their credit, at once."""
        self.budget = TileBudget(engines * binding.max_tiles, engines * settings.max_tile_bytes)
        self.engines = EngineLoads(engines, binding.first_engine)
        self.schedule: Schedule[AsyncRun] = Schedule(
            binding.max_num_seqs, self.budget, settings.max_scenes, engines=engines
        )
        self.scenes: set[AsyncRun] = set()
        self.backlog = Backlog()
        self.shut_down = False
        self._singles_until = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def add(self, run: AsyncRun) -> None:
        """Take a run in, and have it go on."""
        self._loop = asyncio.get_running_loop()
        try:
            self.schedule.add(run)
        except BaseException:
            run.ended.set()  # nobody else will say so
            raise
        self.turn()

    def remove(self, run: AsyncRun) -> None:
        """Forget a run, for which others may have waited."""
        self.schedule.remove(run)
        self.turn()

    def wake(self) -> None:
        """Say that there is something to do; from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.turn)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._woken = False

    def single(self) -> None:
        """Say that a single request comes: parts give way to it, and to others that may follow."""
        self._singles_until = time.monotonic() + SINGLES_S

    @property
    def _gives_way(self) -> bool:
        return time.monotonic() < self._singles_until

    def answered(self, engine: int) -> None:
        """Say that an engine is done with a part."""
        self.engines.give(engine)
        if self._gives_way:
            self.wake()

    def turn(self) -> None:
        """Do what there is to do, and look again when there will be more."""
        self._woken = False
        self.backlog.look()
        try:
            turn = self.schedule.turn(idle=self.engines.idle if self._gives_way else None)
            for run in turn.failed:
                run.cancel_parts()
            for run in turn.ended:
                run.ended.set()
            for batch in turn.batches:
                engine = self.engines.take(len(batch.parts))
                for run, part in batch.parts:
                    run.send(part, batch.mark, engine)
            for run in {*self.schedule.running, *turn.failed, *turn.ended}:
                run.news.set()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.schedule.running:
                self._timer = self._loop.call_later(self.schedule.wait_s, self.turn)


class AsyncRun(Run):
    """A run that goes on whether or not anybody takes its progress."""

    def __init__(
        self,
        runs: AsyncRuns,
        request_id: str,
        request: PartedRequest,
        *,
        send: Send,
        limit_s: float,
        observer: Observer,
        watch: PreviewRequest | None,
        traced: Traced | None,
    ) -> None:
        self.growing = request.growing(runs.wake, watch)
        driver = Driver(runs.budget, runs.wake, observer, self.growing, request_id, traced)
        super().__init__(request_id, request, request.fan_out(driver), limit_s)
        self.news = asyncio.Event()
        """Set when there may be something to report."""
        self.ended = asyncio.Event()
        """Set when the outcome is known."""
        self._runs = runs
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._waited = False

    async def results(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it; yields progress, pictures of what is finished where they were asked for, and last the result."""
        running = asyncio.create_task(self._run())
        running.add_done_callback(lambda _: self.news.set())
        try:
            self._runs.add(self)
            async with aclosing(self._reports(running)) as reports:
                async for report in reports:
                    yield report
            await running
            result = self.result()
            if result.error is not None:
                raise result.error
        finally:
            if not self.ended.is_set():
                self.abort()
            if not running.done():  # a second cancellation goes through and leaves the run to its end
                await asyncio.wait({running})
            self.fan_out.close()
            if self.growing is not None:
                self.growing.close()
        yield result

    async def _reports(self, running: asyncio.Task[None]) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """How far it is, until it has ended and its pictures are shown."""
        shown, pictures = 0, 0
        while True:
            ended = running.done()
            progress = self.progress  # before the pictures: one that is due by now is there
            copy = None if self.growing is None else self.growing.take()
            picture = None if copy is None else await in_thread(copy.image)
            if copy is not None:
                if self.fan_out.error is not None:  # a run that failed shows no more
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
                yield MultimodalRequestOutput(self.request_id, picture, [], 0, finished=False, progress=progress)

    @contextmanager
    def _unattended(self) -> Iterator[None]:
        """While nobody waits for pictures, a newer one takes the place of an older one."""
        if self.growing is not None:
            self.growing.awaited = False
        yield
        if self.growing is not None:
            self.growing.awaited = True

    def abort(self) -> None:
        """End it from outside."""
        self.fan_out.stop(AbortedError("the request was aborted before its result was delivered"))
        self._runs.schedule.give_up(self)
        self._runs.wake()

    async def _run(self) -> None:
        """Wait for its end, and leave nothing behind; also when this task was cancelled."""
        try:
            await self.ended.wait()
        finally:
            try:
                self.fan_out.stop()
                self._runs.remove(self)
                self.cancel_parts()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.to_thread(self.fan_out.join_threads)
            finally:
                self.request.close()

    def send(self, part: PartInput, mark: list[int], engine: int) -> None:
        """Send one part of a batch, of which nothing but its mark is kept: the other parts are their own runs'."""
        task = asyncio.create_task(self._answered(part, mark, engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._runs.answered(engine))

    async def _answered(self, part: PartInput, mark: list[int], engine: int) -> None:
        self.answered(part, await self._answer(part, mark, engine))

    async def _answer(self, part: PartInput, mark: list[int], engine: int) -> MultimodalRequestOutput | BaseException:
        """What the engine makes of a part, or what that failed with; one that is paused is asked again, for a time.

        A paused engine refuses parts, keeps them until it goes on, or drops those that it had: ``mode="abort"``.
        """
        until, wait_s = time.monotonic() + PAUSED_S, ASKED_AGAIN_S
        while True:
            answer: MultimodalRequestOutput | BaseException
            try:
                request_id = f"{self.request_id}-tile-{part.index}-{uuid4().hex}"  # an id that no other request has
                request = self.part_request(part, mark, request_id)
                request.engine = engine
                answer = await self._send(request)
                error = answer.error
            except Exception as raised:  # noqa: BLE001 - a dead engine too: whatever it is, it ends this run
                answer = error = raised
            dropped = isinstance(error, AbortedError) and not self.fan_out.stopped
            if not (dropped or may_be_sent_again(error)) or time.monotonic() > until:
                return answer
            if not self._waited:
                self._waited = True
                logger.warning(
                    "%s waits for a paused engine; its tiles may come of two sets of weights", self.request_id
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)
            mark = Batch([(self, part)]).mark  # the others of its batch may have gone before

    def cancel_parts(self) -> None:
        """End the parts that are in flight."""
        for task in self._tasks:
            if not task.cancelling():  # a second time would disturb what the first one does
                task.cancel()
