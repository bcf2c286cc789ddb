"""Run this server's jobs in their order of creation. Several jobs run at once."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Gauge
from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError
from vllm_mmout.log import logger
from vllm_mmout.outputs.partial_images import GrowingImage, PreviewRequest
from vllm_mmout.serving.errors import ApiError, api_error, log_failure
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.response.encode import encode
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.serving.work import tiles_of
from vllm_mmout.wings.jobs.server.job import SceneError
from vllm_mmout.wings.jobs.server.results import make_result

if TYPE_CHECKING:
    from contextlib import ExitStack

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.work import Work
    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.job import Delivery, SceneInputs, SceneJob, VideoSettings
    from vllm_mmout.wings.jobs.server.results import JobResult

_AT_ONCE: Final = 4
"""Maximum number of jobs that run at once. More jobs would only wait in the engine, which by default runs 4 scenes."""
_PREVIEWS: Final = 2
"""Maximum number of input previews and result maps that are drawn at once."""
_POLL_S: Final = 0.25
"""Seconds between two polls of the database. Each poll looks for deleted jobs and for requests for previews."""
_SWEEP_S: Final = 5.0
"""Seconds between two searches for expired jobs and for jobs of stopped servers."""
_UNSENT: Final = SceneError("client_left", "the client disconnected before it got the job's id; send it again")


@functools.cache
def unfinished_jobs() -> Gauge:
    """Return the Prometheus gauge that counts the waiting and running jobs of this process."""
    text = "Jobs of this server that wait or run."
    return Gauge("mmout:jobs_unfinished", text, multiprocess_mode="livesum")


@dataclass(frozen=True, slots=True)
class _ActiveJob:
    task: asyncio.Task[None]
    watch: PreviewRequest


@dataclass(slots=True)
class SceneRunner:
    """Runner of this server's jobs. Each job runs until it finishes or is deleted."""

    board: SceneBoard
    rebuild: Callable[[SceneJob], tuple[Work, SceneInputs]]
    """Function that rebuilds the request (`Work`) and the input of another server's job. The call blocks."""
    previews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PREVIEWS))
    """Semaphore that limits how many input previews and result maps are drawn at once, to save memory."""
    _running: dict[str, _ActiveJob] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _tending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task that watches this server's jobs and takes over the jobs of stopped servers."""
        unfinished_jobs()  # so that the metric exists before the first job
        self._tending = asyncio.create_task(self._tend())

    async def add(
        self,
        work: Work,
        inputs: SceneInputs,
        model: str,
        options: ServingOptions,
        request: str | None = None,
        *,
        video: VideoSettings | None = None,
        delivery: Delivery | None = None,
    ) -> SceneJob:
        """Create a job and queue it.

        Args:
            work: the work of the job.
            inputs: the input of the job. It is closed when the job ends.
            model: the name of the model.
            options: the limits of the server.
            request: the request as JSON of `encode_request`, from which other servers can start the job again.
            video: the prompt, size and length if the job makes a video.
            delivery: the form of the results, for a job of OGC API Processes.

        Raises:
            ApiError: the limit of unfinished jobs, or of their bytes, is reached (429).

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
            delivery=delivery,
        )
        job = await in_thread(adding, self._delete_unsent)
        if isinstance(job, int):
            raise ApiError(
                429,
                f"{job} jobs are waiting or running, and there is no room for another job or its file"
                f" ({flag('max_scenes')}, {flag('max_scene_bytes')}); try again later",
                headers={"Retry-After": "10"},
            )
        watch = PreviewRequest()
        self._start(job, self._run(job, _with_job_id(work, job), watch, inputs.held), watch)
        return job

    def _start(self, job: SceneJob, run: Coroutine[Any, Any, None], watch: PreviewRequest) -> None:
        task = asyncio.create_task(run)
        self._running[job.id] = _ActiveJob(task, watch)
        unfinished_jobs().inc()
        task.add_done_callback(lambda task: self._ended(job.id, task))

    def _delete_unsent(self, job: SceneJob | int) -> None:
        """Delete a new job whose client disconnected before it got the job's id.

        Do nothing if ``job`` is a number, because the server was full and no job was created.
        """
        if isinstance(job, int):
            return
        try:
            self.board.delete(job.id)
        except Exception:  # noqa: BLE001 - the job will not run, so it must end in any case
            logger.exception("cannot delete job %s", job.id)
            self.board.fail(job, _UNSENT)

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._running.pop(job_id, None)
        unfinished_jobs().dec()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job %s ended with an unexpected error", job_id, exc_info=error)

    def cancel(self, job_id: str) -> None:
        """Cancel the job's task if the job runs on this server."""
        if (running := self._running.get(job_id)) is not None:
            running.task.cancel()

    async def ended(self, job_id: str) -> None:
        """Wait until a job has ended on this server. The job is then finished, deleted, or released to others."""
        if (running := self._running.get(job_id)) is not None:
            await asyncio.wait({running.task})

    def preview(self, server: str, job_id: str) -> Path:
        """Return the path of the preview file that ``server`` writes while it runs a job.

        Beside it is the same picture as a GeoTIFF with the suffix ".tif", if the job's result has a place on a map.
        """
        return self.board.store.shared.work_of(server) / f"{job_id}.png"

    async def _run(self, job: SceneJob, work: Work, watch: PreviewRequest, held: ExitStack) -> None:
        picture = _PreviewFile(self.preview(self.board.server, job.id))
        held.callback(picture.remove)
        try:
            async with self._places:
                if await asyncio.to_thread(self.board.begin, job):
                    await self._run_and_store(job.id, work, watch, picture)
        except Exception as error:  # noqa: BLE001 - becomes the job's error, which clients can read
            await self._record_error(job, error, work.request_id)
        finally:
            await asyncio.shield(asyncio.to_thread(held.close))

    async def _restart(self, job: SceneJob, watch: PreviewRequest) -> None:
        """Run a job again from its beginning, because the server that ran it has stopped."""
        logger.warning("job %s is started again, because its server has stopped", job.id)
        try:
            work, inputs = await in_thread(partial(self.rebuild, job), lambda made: made[1].held.close())
        except Exception as error:  # noqa: BLE001 - becomes the job's error, which clients can read
            await self._record_error(job, error)
        else:
            await self._run(job, _with_job_id(work, job), watch, inputs.held)

    async def _record_error(self, job: SceneJob, error: Exception, request_id: str | None = None) -> None:
        """Record that a job failed. If the engine died, try instead to release the job to the other servers."""
        engine_died = isinstance(error.__cause__, EngineDeadError | AbortedError)
        if not engine_died or not await asyncio.to_thread(self.board.release, job.id):
            failure = api_error(error, request_id)
            log_failure(job.id, failure.status, failure.message)
            await asyncio.to_thread(self.board.fail, job, SceneError(failure.type, failure.message))

    async def _run_and_store(self, job_id: str, work: Work, watch: PreviewRequest, picture: _PreviewFile) -> None:
        """Run a job to its end and store its results. Update the file ``picture`` if a client requests a preview."""
        async with aclosing(work.running(watch)) as outputs:
            async for output in outputs:
                last, progress = output, output.progress
                if output.finished or progress is None:
                    continue
                await asyncio.to_thread(self.board.progress, job_id, progress.done, progress.total)
                if progress.partial_index is not None:
                    await in_thread(partial(picture.show, output.outputs))
        # The thread always runs to its end. If the job was deleted in the meantime, it removes the files it stored.
        await in_thread(partial(self._store, job_id, work, last))

    def _store(self, job_id: str, work: Work, last: MultimodalRequestOutput) -> None:
        folder, budget = self.board.store.shared.work, work.new_budget()

        def make(output: Any, file_format: FormatChoice, respond: ToResponse | None) -> JobResult:
            return make_result(output, file_format, respond, folder, last.assumed, budget=budget)

        results = work.made(last.outputs, make)
        self.board.complete(job_id, results, tiles_of(last))

    async def _tend(self) -> None:
        loop, swept = asyncio.get_running_loop(), 0.0
        while True:
            try:
                if loop.time() - swept > _SWEEP_S:
                    swept = loop.time()
                    await asyncio.to_thread(self.board.sweep)
                while not self.board.taken_over.empty():
                    job, watch = self.board.taken_over.get_nowait(), PreviewRequest()
                    self._start(job, self._restart(job, watch), watch)
                if self._running:
                    await self._poll()
            except Exception:  # noqa: BLE001 - the error may be temporary, e.g. of the disk
                logger.exception("the check on the jobs failed and will be repeated")
            await asyncio.sleep(_POLL_S)

    async def _poll(self) -> None:
        """Poll the database. Cancel jobs that were deleted, and request previews that clients want.

        Servers share only the database, so that a server learns of such requests by polling it.
        """
        running_before = list(self._running.items())
        unfinished = await asyncio.to_thread(self.board.running)
        for job_id, running in running_before:
            if job_id not in unfinished:
                running.task.cancel()
            elif unfinished[job_id]:
                running.watch.ask()


def _with_job_id(work: Work, job: SceneJob) -> Work:
    """Return a copy of ``work`` whose request id begins with the job's id. Logs and traces show the request id."""
    return replace(work, request_id=f"{job.id}-{work.request_id}")


class _PreviewFile:
    """Preview of a running job, as PNG and GeoTIFF files in the results folder that all servers share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._removed = False

    def show(self, output: Any) -> None:
        """Write a preview of an output as PNG, and as GeoTIFF if possible. The files are replaced atomically."""
        encoded = encode(output, FormatChoice(output_format="png"))
        contents = {self._path: encoded.read(0, encoded.nbytes)}
        if isinstance(output, GrowingImage) and (geotiff := output.geotiff()) is not None:
            contents = {self._path.with_suffix(".tif"): geotiff, **contents}
        part = self._path.with_suffix(".part")
        with self._lock:
            if self._removed:  # the job was cancelled meanwhile
                return
            with suppress(FileNotFoundError):  # the folder was removed
                for path, content in contents.items():
                    part.write_bytes(content)
                    part.rename(path)

    def remove(self) -> None:
        """Remove the preview files of a job that has ended. Later calls of `show` write no files."""
        with self._lock:
            self._removed = True
            for suffix in (".png", ".tif"):
                self._path.with_suffix(suffix).unlink(missing_ok=True)
