"""AsyncScene: a scene, or another request of many parts, whose tiles go through an ``AsyncLLM``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.parts.parts_request import Driver
from vllm_mmout.engine.parts.queues import PATIENCE_S
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.errors import AbortedError

if TYPE_CHECKING:
    from vllm_mmout.engine.parts.parts_request import PartedRequest, PartInput
    from vllm_mmout.engine.parts.queues import Gathering
    from vllm_mmout.engine.request.budgets import TileBudget
    from vllm_mmout.outputs.image import ImageOutput
    from vllm_mmout.outputs.partial_images import PreviewRequest

_TICK_S = 1.0
"""Seconds after which a scene is looked at though nothing was heard of it."""


class AsyncScene:
    """Runs one scene, whether or not anybody takes its progress.

    Args:
        request_id: the user's name for the request.
        scene: the scene; closed at the end.
        budget: of all scenes of the engine.
        slots: as many as scenes may run at once.
        gathering: of the tiles of all scenes of the engine.
        send: runs one tile through the engine and gives its result; the last argument says which batch it is of.
        limit_s: seconds that a processor may work on one part.
        observer: hears of the tiles.
        watch: asks for pictures of what is finished; None: nobody asks.

    """

    def __init__(
        self,
        request_id: str,
        scene: PartedRequest,
        *,
        budget: TileBudget,
        slots: asyncio.Semaphore,
        gathering: Gathering[AsyncScene],
        send: Callable[[AsyncScene, PartInput, list[int]], Coroutine[Any, Any, MultimodalRequestOutput]],
        limit_s: float,
        observer: Observer = SILENT,
        watch: PreviewRequest | None = None,
    ) -> None:
        self.request_id = request_id
        self.scene = scene
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._progress = asyncio.Event()
        self._slots = slots
        self._gathering = gathering
        self._send = send
        self._limit_s = limit_s
        self.tiles: set[asyncio.Task[None]] = set()
        """Of the tiles that are in flight."""
        self.growing = scene.growing(self._wake, watch)
        self.fan_out = scene.fan_out(Driver(budget, self._wake, observer, self.growing, request_id))

    async def results(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it; yields progress, pictures of what is finished where they were asked for, and last the result."""
        driver = asyncio.create_task(self._drive())
        driver.add_done_callback(lambda _: self._progress.set())
        try:
            async with aclosing(self._reports(driver)) as reports:
                async for report in reports:
                    yield report
            await driver
            result = self._report(Progress(self.fan_out.done, self.fan_out.total), finished=True)
            result.outputs = self.scene.outputs(self.fan_out.outcome())
        finally:
            self.abort()
            if not driver.done():  # a second cancellation goes through and leaves the driver to its work
                await asyncio.wait({driver})
            self.fan_out.close()
            if self.growing is not None:
                self.growing.close()
        yield result

    async def _reports(self, driver: asyncio.Task[None]) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """How far it is, until the driver has ended and its pictures are shown."""
        shown, pictures = 0, 0
        while True:
            ended = driver.done()
            done, total = self.fan_out.done, self.fan_out.total  # before the pictures: one that is due by now is there
            copy = None if self.growing is None else self.growing.take()
            if copy is not None:
                picture = await asyncio.to_thread(copy.image)
                if self.fan_out.error is not None:  # a scene that failed shows no more
                    continue
                shown = copy.tiles
                report = self._report(Progress(shown, total, pictures), picture)
                pictures += 1
            elif ended:
                return
            elif done > shown:
                shown = done
                report = self._report(Progress(shown, total))
            else:
                await self._progress.wait()
                self._progress.clear()
                continue
            with self._unattended():
                yield report

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
        self._wake()

    async def _drive(self) -> None:
        try:
            async with self._slot():
                if self.fan_out.error is None:
                    await self._run()
        finally:
            try:
                await self._end()
            finally:
                self.scene.close()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold a place among the scenes that run; of one that is aborted while it waits, none."""
        if self._slots.locked():
            self.scene.pause()
        place = asyncio.create_task(self._slots.acquire())
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait({place, news}, return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            news.cancel()
            if not place.cancel() and not place.cancelled():
                self._slots.release()

    async def _run(self) -> None:
        self._gathering.add(self)
        self.fan_out.start()
        while not self.fan_out.finished:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), PATIENCE_S if self._gathering.waits else _TICK_S)
            self._news.clear()
            self.fan_out.check_time(self._limit_s)
            if self.fan_out.error is not None:
                self._cancel_tiles()
            self._send_batches()
            self._progress.set()

    def _send_batches(self) -> None:
        """Send what is ready, of the other scenes as well."""
        for batch in self._gathering.batches():
            for run, part in batch.tiles:
                task = asyncio.create_task(run.tile(part, batch.mark))
                run.tiles.add(task)
                task.add_done_callback(run.tiles.discard)

    async def tile(self, part: PartInput, batch: list[int]) -> None:
        """Run one tile; its failure is the scene's."""
        try:
            result = await self._send(self, part, batch)
        except Exception as error:  # noqa: BLE001 - a dead engine too: whatever it is, it ends this scene
            self.fan_out.failed(part, error)
        else:
            if result.error is not None:
                self.fan_out.failed(part, result.error)

    async def _end(self) -> None:
        """Leave nothing behind; also when this task was cancelled."""
        self.fan_out.stop()
        self._gathering.remove(self)
        self._send_batches()  # of others, that waited for this one's
        self._cancel_tiles()
        if self.tiles:
            await asyncio.gather(*self.tiles, return_exceptions=True)
        await asyncio.to_thread(self.fan_out.join_threads)

    def _cancel_tiles(self) -> None:
        for task in self.tiles:
            if not task.cancelling():  # a second time would disturb what the first one does
                task.cancel()

    def _report(
        self, progress: Progress, picture: ImageOutput | None = None, *, finished: bool = False
    ) -> MultimodalRequestOutput:
        return MultimodalRequestOutput(self.request_id, picture, [], 0, finished=finished, progress=progress)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._news.set)
