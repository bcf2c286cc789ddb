"""Manage the jobs and stored results of all servers that share a results folder."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.wings.jobs.server.database import MOST_STARTS, SceneDatabase
from vllm_mmout.wings.jobs.server.job import PREFIX, VIDEO_PREFIX, SceneError, SceneJob, SceneOutput

if TYPE_CHECKING:
    from vllm_mmout.engine.request.results import ResultKey
    from vllm_mmout.wings.jobs.server.job import Delivery, VideoSettings
    from vllm_mmout.wings.jobs.server.results import JobResult

FILE: Final = "scenes.sqlite"
_OF_FAILED: Final = ("status", "completed_at", "expires_at", "error", "outputs", "request")
_logger = logging.getLogger("vllm.mmout")
_ENDED: Final = SceneError("server_ended", "the server that ran the job stopped before the job ended; send it again")
_WORN_OUT: Final = SceneError(
    "server_ended",
    f"the job was started {MOST_STARTS} times, and each time its server stopped before the job ended, perhaps for lack"
    " of memory; ask for less (window, bbox), or send it again",
)


class SceneBoard:
    """Jobs of all servers that share a results folder, with the results. All methods block and are thread-safe."""

    def __init__(self, store: ResultStore, serves: Callable[[str], bool] = lambda _: True) -> None:
        """Open the job database in the folder of ``store``.

        Args:
            store: the results of jobs, in a folder that several servers may share.
            serves: returns whether this server can run jobs of a model, by its name, at the moment.

        """
        self.store = store
        self.taken_over: SimpleQueue[SceneJob] = SimpleQueue()
        """Queue of jobs from stopped servers that this server has taken over and must start."""
        self._serves = serves
        self._database = SceneDatabase(store.folder / FILE, store.shared.enter)
        self._unwritten: dict[str, SceneJob] = {}
        """Failed jobs by job id. This server still has to record in the database that these jobs failed."""

    @property
    def server(self) -> str:
        """Name of this server. It identifies the server's jobs in the database."""
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
        video: VideoSettings | None = None,
        delivery: Delivery | None = None,
    ) -> SceneJob | int:
        """Create a job that this server will run, unless a limit of unfinished jobs is reached.

        Args:
            model: the name of the model.
            name: the client's name for the input.
            nbytes: bytes of uploaded files that the server holds until the job ends.
            most: limit of unfinished jobs on all servers.
            most_bytes: limit of ``nbytes`` of all unfinished jobs together.
            request: the request as JSON, see `kept_request.encode_request`, if other servers can start the job again.
            video: the prompt, size and length if the job makes a video.
            delivery: the form of the results, for a job of OGC API Processes.

        Returns:
            The job, or the number of unfinished jobs if a limit is reached.

        """
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
            delivery=delivery,
        )
        unfinished = self._database.add(job, most=most, most_bytes=most_bytes)
        if unfinished is not None and self.sweep():  # some of the jobs that were counted had lost their server
            unfinished = self._database.add(job, most=most, most_bytes=most_bytes)
        return job if unfinished is None else unfinished

    def get(self, job_id: str) -> SceneJob | None:
        """Return the current state of a job, or None if it does not exist or has expired."""
        job = self._unwritten.get(job_id) or self._database.get(job_id)
        if job is not None and not job.finished and not self.store.shared.lives(job.server):
            self._bury(job.server)
            job = self._database.get(job_id)
        return None if job is None or self._is_over(job) else job

    def page(
        self, limit: int, after: str | None, order: Literal["asc", "desc"], kind: str = PREFIX
    ) -> tuple[Sequence[SceneJob], bool] | None:
        """Return a page of the jobs whose ids have the prefix ``kind``, and whether more jobs follow.

        Return None if the job ``after`` does not exist.
        """
        self.sweep()
        page = self._database.page(limit, after, order, kind)
        return None if page is None else ([self._unwritten.get(job.id, job) for job in page[0]], page[1])

    def running(self) -> dict[str, bool]:
        """Return a dict of this server's unfinished jobs: job id -> whether a client has asked for a preview."""
        return self._database.running(self.server)

    def ask_preview(self, job_id: str) -> None:
        """Ask the server that runs a job to make a preview. The request is recorded in the database."""
        self._database.ask_preview(job_id)

    def begin(self, job: SceneJob) -> bool:
        """Record that a job has started. Return False if the job was deleted."""
        return self._change(job.id, status="in_progress", started_at=time.time(), starts=job.starts + 1)

    def progress(self, job_id: str, done: int, total: int) -> bool:
        """Record how many tiles of a job are finished. Return False if the job was deleted."""
        return self._change(job_id, tiles_done=done, tiles_total=total)

    def release(self, job_id: str) -> bool:
        """Release a job of this server, so that any server may restart it. Return False if no server can restart it."""
        return self._database.release(job_id, self.server)

    def _change(self, job_id: str, **values: Any) -> bool:
        return self._database.change(job_id, of=self.server, **values)

    def complete(self, job_id: str, results: Mapping[ResultKey, JobResult], tiles: int) -> bool:
        """Store the results of a job, close their files, and record that the job is completed.

        Returns:
            False if the job was deleted in the meantime. Its results are then removed.

        Raises:
            OptionError: the results are larger than the limit of all stored results.

        """
        outputs = tuple(self._named(key, result) for key, result in results.items())
        stored = [name for output in outputs for name in output.files]
        try:
            self._check_size(results.values())
            # If this server stops before the end, another server reads from these names which files to remove.
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
        """Record that a job of this server failed. Return False if the job was deleted.

        If the database cannot be written either, only this server reports the failure until a later write succeeds.
        """
        now = time.time()
        times = {"completed_at": now, "expires_at": now + self.store.ttl}
        failed = msgspec.structs.replace(job, status="failed", error=error, outputs=(), request=None, **times)
        try:
            return self._write(failed)
        except Exception:  # the job has failed, whatever keeps the database from being written
            _logger.exception("job %s failed, but the failure cannot be written to the database yet", job.id)
            self._unwritten[job.id] = failed
            return True

    def _write(self, failed: SceneJob) -> bool:
        return self._change(failed.id, **{name: getattr(failed, name) for name in _OF_FAILED})

    def _write_failed(self) -> None:
        """Write failed jobs to the database if an earlier attempt did not succeed, for example on a full disk."""
        for job in list(self._unwritten.values()):
            try:
                self._write(job)
            except Exception:  # noqa: BLE001 - `fail` has logged it
                return
            self._unwritten.pop(job.id, None)

    def delete(self, job_id: str) -> SceneJob | None:
        """Delete a job and its results. Return the job, or None if it does not exist or has expired."""
        job = self._database.delete(job_id)
        self._unwritten.pop(job_id, None)
        if job is not None:
            self._remove(job.stored)
        return None if job is None or self._is_over(job) else job

    def sweep(self) -> bool:
        """Take over or fail the jobs of stopped servers. Delete finished jobs that expired or lost their results.

        Returns:
            Whether a server with unfinished jobs has stopped.

        """
        self._write_failed()
        stopped = [server for server in self._database.servers() if not self.store.shared.lives(server)]
        for server in stopped:
            self._bury(server)
        for job in self._database.finished():
            if self._is_over(job) or not all(self.store.has(name) for name in job.stored):
                self.delete(job.id)
        return bool(stopped)

    def close(self) -> None:
        """Close the job database."""
        self._database.close()

    def _bury(self, server: str) -> None:
        now = time.time()
        taken, stored = self._database.take_over(server, self.server, self._serves)
        for job in taken:
            self.taken_over.put(job)
        self._remove(stored)
        self._remove(self._database.fail_all(server, _ENDED, now, now + self.store.ttl, worn_out=_WORN_OUT))
        self.store.shared.remove_dead()

    def _named(self, key: ResultKey, result: JobResult) -> SceneOutput:
        file, picture = result.file, result.picture
        return SceneOutput(
            processor=key[0],
            day=key[1],
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
        """Raise an OptionError if the results of a job together exceed the store's size limit."""
        files = [file for result in results for file in (result.file, result.picture) if file is not None]
        nbytes, most = sum(file.nbytes for file in files), self.store.max_bytes
        if nbytes > most:
            raise OptionError(
                f"the results of the job have {nbytes} bytes, more than the {most} bytes that the server stores"
                " (--mmout-max-results); ask for fewer results, or for other formats"
            )

    def _remove(self, stored: Sequence[str]) -> None:
        for name in stored:
            self.store.remove(name)

    def _is_over(self, job: SceneJob) -> bool:
        return job.expires_at is not None and job.expires_at <= time.time()
