"""SceneRunner: the jobs that this server runs, some at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError
from vllm_mmout.log import logger
from vllm_mmout.outputs.partial_images import PreviewRequest
from vllm_mmout.serving.errors import ApiError, api_error, log_failure
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.response.encode import FormatChoice, encode
from vllm_mmout.wings.jobs.server.job import SceneError
from vllm_mmout.wings.jobs.server.results import make_result

if TYPE_CHECKING:
    from contextlib import ExitStack

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.work import Work
    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.job import SceneInputs, SceneJob, VideoAsked
    from vllm_mmout.wings.jobs.server.results import JobResult

_AT_ONCE: Final = 4
"""Jobs that run at once: as many scenes are cut at once in any case, and small ones share forwards."""
_PREVIEWS: Final = 2
_LOOK_S: Final = 0.25
"""Seconds after which this server looks which of its jobs were deleted, or are to be seen, elsewhere."""
_SWEEP_S: Final = 5.0
"""Seconds after which it looks for jobs of dead servers, and for those whose time is over."""
_UNSENT: Final = SceneError("client_left", "its client was gone before it heard of the job; send it again")


@dataclass(frozen=True, slots=True)
class _Running:
    task: asyncio.Task[None]
    watch: PreviewRequest


@dataclass(slots=True)
class SceneRunner:
    """Runs jobs until they are finished or deleted."""

    board: SceneBoard
    again: Callable[[SceneJob], tuple[Work, SceneInputs]]
    """Makes a job ready that another server has begun; blocks."""
    previews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PREVIEWS))
    """Inputs that are reduced for a page at once: each may take some hundred MiB."""
    _running: dict[str, _Running] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _tending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after jobs, also those of servers that have died, until the event loop ends."""
        self._tending = asyncio.create_task(self._tend())

    async def add(
        self,
        work: Work,
        inputs: SceneInputs,
        model: str,
        options: ServingOptions,
        request: str | None = None,
        *,
        video: VideoAsked | None = None,
    ) -> SceneJob:
        """Make a job, which is run when its turn comes; its inputs are closed when it ends.

        With its ``request``, a `KeptRequest`, other servers can start it again when this one has ended.
        """
        adding = partial(
            self.board.add,
            model=model,
            name=inputs.name,
            nbytes=inputs.nbytes,
            most=options.max_scenes,
            most_bytes=options.max_scene_bytes,
            request=request,
            video=video,
        )
        job = await in_thread(adding, self._forget)
        if isinstance(job, int):
            raise ApiError(
                429,
                f"{job} jobs wait or run, and there is no place for one more, or for its file"
                f" ({flag('max_scenes')}, {flag('max_scene_bytes')}); try again later",
                headers={"Retry-After": "10"},
            )
        watch = PreviewRequest()
        self._start(job, self._run(job, _named(work, job), watch, inputs.held), watch)
        return job

    def _start(self, job: SceneJob, run: Coroutine[Any, Any, None], watch: PreviewRequest) -> None:
        task = asyncio.create_task(run)
        self._running[job.id] = _Running(task, watch)
        task.add_done_callback(lambda task: self._ended(job.id, task))

    def _forget(self, job: SceneJob | int) -> None:
        """Forget a job that nobody will run; a number is none."""
        if isinstance(job, int):
            return
        try:
            self.board.delete(job.id)
        except Exception:  # noqa: BLE001 - whatever it is, nobody runs the job, so it must end
            logger.exception("job %s cannot be forgotten", job.id)
            self.board.fail(job, _UNSENT)

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._running.pop(job_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job %s did not end as it should", job_id, exc_info=error)

    def cancel(self, job_id: str) -> None:
        """End a job that was deleted, if it is one of this server's."""
        if (running := self._running.get(job_id)) is not None:
            running.task.cancel()

    def preview(self, server: str, job_id: str) -> Path:
        """Where a server puts the picture of a job that it runs."""
        return self.board.store.shared.work_of(server) / f"{job_id}.png"

    async def _run(self, job: SceneJob, work: Work, watch: PreviewRequest, held: ExitStack) -> None:
        picture = _Picture(self.preview(self.board.server, job.id))
        held.callback(picture.remove)
        try:
            async with self._places:
                if await asyncio.to_thread(self.board.begin, job):
                    await self._done(job.id, work, watch, picture)
        except Exception as error:  # noqa: BLE001 - becomes what clients are told of the job
            await self._failed(job, error, work.request_id)
        finally:
            await asyncio.shield(asyncio.to_thread(held.close))

    async def _again(self, job: SceneJob, watch: PreviewRequest) -> None:
        """Run a job that another server has begun."""
        logger.warning("job %s of a server that has ended is started again", job.id)
        try:
            work, inputs = await in_thread(partial(self.again, job), lambda made: made[1].held.close())
        except Exception as error:  # noqa: BLE001 - as above
            await self._failed(job, error)
        else:
            await self._run(job, _named(work, job), watch, inputs.held)

    async def _failed(self, job: SceneJob, error: Exception, request_id: str | None = None) -> None:
        """Say what a job failed with; one that its engine has failed is left to a server that has another."""
        ended = isinstance(error.__cause__, EngineDeadError | AbortedError)
        if not ended or not await asyncio.to_thread(self.board.give_up, job.id):
            known = api_error(error, request_id)
            log_failure(job.id, known.status, known.message)
            await asyncio.to_thread(self.board.fail, job, SceneError(known.type, known.message))

    async def _done(self, job_id: str, work: Work, watch: PreviewRequest, picture: _Picture) -> None:
        """Run a job to its end, and store its results."""
        async with aclosing(work.running(watch)) as outputs:
            async for output in outputs:
                last, progress = output, output.progress
                if output.finished or progress is None:
                    continue
                await asyncio.to_thread(self.board.progress, job_id, progress.done, progress.total)
                if progress.partial_index is not None:
                    await in_thread(partial(picture.show, output.outputs))
        tiles = 1 if last.progress is None else last.progress.total
        # Ends in any case: what is stored of a job that is deleted meanwhile is found and removed there.
        await in_thread(partial(self._store, job_id, work, last, tiles))

    def _store(self, job_id: str, work: Work, last: MultimodalRequestOutput, tiles: int) -> None:
        folder, budget = self.board.store.shared.work, work.new_budget()

        def make(output: Any, respond: ToResponse | None) -> JobResult:
            return make_result(output, work.asked, respond, folder, last.assumed, budget=budget)

        results = work.made(last.outputs, make)
        self.board.complete(job_id, results, tiles)

    async def _tend(self) -> None:
        loop, swept = asyncio.get_running_loop(), 0.0
        while True:
            try:
                if loop.time() - swept > _SWEEP_S:
                    swept = loop.time()
                    await asyncio.to_thread(self.board.sweep)
                while not self.board.taken.empty():
                    job, watch = self.board.taken.get_nowait(), PreviewRequest()
                    self._start(job, self._again(job, watch), watch)
                if self._running:
                    await self._look()
            except Exception:  # noqa: BLE001 - a disk that fails now may work the next time
                logger.exception("jobs could not be looked after")
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        """End the jobs that were deleted, and let those be seen that somebody asks for.

        The table is all that servers share: a message to the one that runs a job would need a way of its own to it.
        """
        there_before = list(self._running.items())
        known = await asyncio.to_thread(self.board.running)
        for job_id, running in there_before:
            if job_id not in known:
                running.task.cancel()
            elif known[job_id]:
                running.watch.ask()


def _named(work: Work, job: SceneJob) -> Work:
    """Return the work of a job under a request id that begins with the job's id, for the log and the trace."""
    return replace(work, request_id=f"{job.id}-{work.request_id}")


class _Picture:
    """The picture of a job that runs, where clients of any server find it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._removed = False

    def show(self, output: Any) -> None:
        """Put a picture there, whole at every moment."""
        encoded = encode(output, FormatChoice(output_format="png"))
        part = self._path.with_suffix(".part")
        with self._lock:
            if self._removed:  # the job was cancelled meanwhile
                return
            with suppress(FileNotFoundError):  # somebody cleaned the folder away
                part.write_bytes(encoded.read(0, encoded.nbytes))
                part.rename(self._path)

    def remove(self) -> None:
        """Remove it for good."""
        with self._lock:
            self._removed = True
            self._path.unlink(missing_ok=True)
