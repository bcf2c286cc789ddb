"""SceneBoard: the jobs of all servers with their results, changed together."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.wings.jobs.server.database import MOST_STARTS, SceneDatabase
from vllm_mmout.wings.jobs.server.job import PREFIX, VIDEO_PREFIX, SceneError, SceneJob, SceneOutput

if TYPE_CHECKING:
    from vllm_mmout.wings.jobs.server.job import VideoAsked
    from vllm_mmout.wings.jobs.server.results import JobResult

FILE: Final = "scenes.sqlite"
_OF_FAILED: Final = ("status", "completed_at", "expires_at", "error", "outputs", "request")
_logger = logging.getLogger("vllm.mmout")
_ENDED: Final = SceneError("server_ended", "the server that ran the job ended before it was done; send it again")
_WORN_OUT: Final = SceneError(
    "server_ended",
    f"the servers that ran the job ended before it was done, {MOST_STARTS} times, perhaps for lack of memory; ask for"
    " less (window, bbox), or send it again",
)


class SceneBoard:
    """What every server of a folder knows of jobs, and does with them. All methods block; threads may share one."""

    def __init__(self, store: ResultStore, serves: Callable[[str], bool] = lambda _: True) -> None:
        """Share what ``store`` shares; ``serves`` says whether this server can run jobs of a model now."""
        self.store = store
        self.taken: SimpleQueue[SceneJob] = SimpleQueue()
        """Jobs of other servers, which this one has to run now."""
        self._serves = serves
        self._database = SceneDatabase(store.folder / FILE, store.shared.enter)
        self._unwritten: dict[str, SceneJob] = {}
        """Jobs of this server that have failed, and whose rows cannot say so yet: the disk may be full."""

    @property
    def server(self) -> str:
        """The name of this server."""
        return self.store.shared.server

    def add(
        self,
        *,
        model: str,
        name: str,
        nbytes: int,
        most: int,
        most_bytes: int,
        request: str | None = None,
        video: VideoAsked | None = None,
    ) -> SceneJob | int:
        """Add a job that this server is to run; gives how many are unfinished, where there is no place for one more."""
        self.store.shared.enter()
        self._write_failed()
        job = SceneJob(
            id=(PREFIX if video is None else VIDEO_PREFIX) + secrets.token_urlsafe(32),
            server=self.server,
            model=model,
            name=name,
            nbytes=nbytes,
            created_at=time.time(),
            request=request,
            video=video,
        )
        full = self._database.add(job, most=most, most_bytes=most_bytes)
        if full is not None and self.sweep():  # of those that were counted some had no server any more
            full = self._database.add(job, most=most, most_bytes=most_bytes)
        return job if full is None else full

    def get(self, job_id: str) -> SceneJob | None:
        """A job as it is; None if there is none, or its time is over."""
        job = self._unwritten.get(job_id) or self._database.get(job_id)
        if job is not None and not job.finished and not self.store.shared.lives(job.server):
            self._bury(job.server)
            job = self._database.get(job_id)
        return None if job is None or self._is_over(job) else job

    def page(
        self, limit: int, after: str | None, order: Literal["asc", "desc"], kind: str = PREFIX
    ) -> tuple[Sequence[SceneJob], bool] | None:
        """Some jobs, see `SceneDatabase.page`."""
        self.sweep()
        page = self._database.page(limit, after, order, kind)
        return None if page is None else ([self._unwritten.get(job.id, job) for job in page[0]], page[1])

    def running(self) -> dict[str, bool]:
        """The unfinished jobs of this server, and of which somebody wants a preview."""
        return self._database.running(self.server)

    def ask_preview(self, job_id: str) -> None:
        """Have the server that runs a job make a preview."""
        self._database.ask_preview(job_id)

    def begin(self, job: SceneJob) -> bool:
        """Note that a job runs; False if it was deleted."""
        return self._change(job.id, status="in_progress", started_at=time.time(), starts=job.starts + 1)

    def progress(self, job_id: str, done: int, total: int) -> bool:
        """Note how many tiles are done; False if the job was deleted."""
        return self._change(job_id, tiles_done=done, tiles_total=total)

    def give_up(self, job_id: str) -> bool:
        """Leave a job to be started again by whoever can; False if nobody may."""
        return self._database.give_up(job_id, self.server)

    def _change(self, job_id: str, **values: Any) -> bool:
        return self._database.change(job_id, of=self.server, **values)

    def complete(self, job_id: str, results: dict[str, JobResult], tiles: int) -> bool:
        """Store the results of a job, which are closed; False, and nothing is left of it, if it was deleted."""
        outputs = tuple(self._named(name, result) for name, result in results.items())
        stored = [name for output in outputs for name in output.files]
        try:
            self._check_size(results.values())
            # Whoever finds this server dead in between knows by that what to remove.
            kept = self._change(job_id, outputs=outputs)
            for output, result in zip(outputs, results.values(), strict=True):
                if kept and output.preview is not None and result.picture is not None:
                    self.store.keep(result.picture, output.preview)
                if kept:
                    self.store.keep(result.file, output.stored)
            now = time.time()
            kept = kept and self._change(
                job_id,
                status="completed",
                request=None,
                completed_at=now,
                expires_at=now + self.store.ttl,
                tiles_done=tiles,
                tiles_total=tiles,
            )
        except BaseException:
            kept = False
            raise
        finally:
            for result in results.values():
                result.close()
            if not kept:
                self._remove(stored)
        return kept

    def fail(self, job: SceneJob, error: SceneError) -> bool:
        """Note that a job of this server failed; False if it was deleted.

        Where the database fails too, this server alone says so until it can be written.
        """
        now = time.time()
        times = {"completed_at": now, "expires_at": now + self.store.ttl}
        failed = msgspec.structs.replace(job, status="failed", error=error, outputs=(), request=None, **times)
        try:
            return self._write(failed)
        except Exception:  # whatever it is, the job has ended
            _logger.exception("job %s failed, which cannot be written yet", job.id)
            self._unwritten[job.id] = failed
            return True

    def _write(self, failed: SceneJob) -> bool:
        return self._change(failed.id, **{name: getattr(failed, name) for name in _OF_FAILED})

    def _write_failed(self) -> None:
        """Try again to write which jobs failed, which gives their places in the limits back."""
        for job in list(self._unwritten.values()):
            try:
                self._write(job)
            except Exception:  # noqa: BLE001 - said when it failed
                return
            self._unwritten.pop(job.id, None)

    def delete(self, job_id: str) -> SceneJob | None:
        """Forget a job and remove its results; None if there is none."""
        job = self._database.delete(job_id)
        self._unwritten.pop(job_id, None)
        if job is not None:
            self._remove(job.stored)
        return None if job is None or self._is_over(job) else job

    def sweep(self) -> bool:
        """Take over or fail the jobs of dead servers, and forget those without results; gives whether one was dead."""
        self._write_failed()
        dead = [server for server in self._database.servers() if not self.store.shared.lives(server)]
        for server in dead:
            self._bury(server)
        for job in self._database.finished():
            if self._is_over(job) or not all(self.store.has(name) for name in job.stored):
                self.delete(job.id)
        return bool(dead)

    def close(self) -> None:
        """Close the file of jobs."""
        self._database.close()

    def _bury(self, server: str) -> None:
        now = time.time()
        taken, stored = self._database.take_over(server, self.server, self._serves)
        for job in taken:
            self.taken.put(job)
        self._remove(stored)
        self._remove(self._database.fail_all(server, _ENDED, now, now + self.store.ttl, worn_out=_WORN_OUT))
        self.store.shared.remove_dead()

    def _named(self, processor: str, result: JobResult) -> SceneOutput:
        file, picture = result.file, result.picture
        return SceneOutput(
            processor=processor,
            output_format=file.format,
            media_type=file.media_type,
            bytes=file.nbytes,
            size=file.size,
            classes=result.classes,
            stored=self.store.new_name(file),
            preview=None if picture is None else self.store.new_name(picture),
            seconds=result.seconds,
            assumed=result.assumed,
        )

    def _check_size(self, results: Iterable[JobResult]) -> None:
        """Refuse results of which one would make another one go."""
        files = [file for result in results for file in (result.file, result.picture) if file is not None]
        nbytes, most = sum(file.nbytes for file in files), self.store.max_bytes
        if nbytes > most:
            raise OptionError(
                f"the results of the job have {nbytes} bytes, and {most} of all results are stored"
                " (--mmout-max-results); ask for fewer, or for other formats"
            )

    def _remove(self, stored: Sequence[str]) -> None:
        for name in stored:
            self.store.remove(name)

    def _is_over(self, job: SceneJob) -> bool:
        return job.expires_at is not None and job.expires_at <= time.time()
