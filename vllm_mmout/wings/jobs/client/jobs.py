"""Create, poll and delete jobs on a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.retries import call_with_retries
from vllm_mmout.wings.jobs.client.form import MultipartForm
from vllm_mmout.wings.jobs.client.session import ServerError, Session, TemporaryError

ROUTE = "/v1/scenes"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
"""First and longest pause between two polls of a job, in seconds. The pauses grow, so that long jobs are polled
rarely."""
_ANSWER_S = 300.0
"""Seconds to wait for the response to an upload. Large uploads take the server a while to write to disk."""

Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,200}$")]
"""Id of a job. Only characters that are safe in URLs and shell commands are accepted."""
Name = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]{0,199}$")]
"""Name of a processor. Only characters that are safe in file names are accepted."""
Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
"""Day of a map, such as "2024-06-01"."""


class Tiles(msgspec.Struct, frozen=True):
    """Progress of a job: the number of finished tiles, and the number of all tiles."""

    done: int
    total: int


class ResultClass(msgspec.Struct, frozen=True):
    """One class of a result."""

    id: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    name: str | None = None
    color: Annotated[str, msgspec.Meta(pattern="^#[0-9a-f]{6}$")] = "#000000"


class JobOutput(msgspec.Struct, frozen=True):
    """One result of a job."""

    processor: Name
    output_format: str
    bytes: int
    classes: tuple[ResultClass, ...] | None = None
    day: Day | None = None
    """Day that the map shows. None if the job does not make a separate map for each day."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names in the order of their ids, or None if a class lacks a name or an id is skipped."""
        class_names = {entry.id: entry.name for entry in self.classes or () if entry.name is not None}
        names = tuple(class_names[number] for number in range(len(class_names)) if number in class_names)
        return names if names and len(names) == len(self.classes or ()) else None

    @property
    def palette(self) -> NDArray[np.uint8]:
        """RGB colours by class id, as uint8 [largest id + 1, 3]. Ids that no class has are black."""
        colours = np.zeros((max((entry.id for entry in self.classes or ()), default=-1) + 1, 3), np.uint8)
        for entry in self.classes or ():
            colours[entry.id] = list(bytes.fromhex(entry.color[1:]))
        return colours


class JobError(msgspec.Struct, frozen=True):
    """The error of a failed job."""

    message: str


class Job(msgspec.Struct, frozen=True):
    """A job, as the server's JSON response describes it."""

    id: Id
    status: Literal["queued", "in_progress", "completed", "failed"]
    name: str = ""
    tiles: Tiles | None = None
    outputs: tuple[JobOutput, ...] = ()
    error: JobError | None = None
    warnings: tuple[str, ...] = ()
    """Sentences about defaults that the server assumed because the input lacks metadata. Older servers do not send
    them."""


def check_server(session: Session) -> None:
    """Check before a large upload that the server is reachable, accepts the API key, and supports jobs."""
    try:
        session.get(f"{ROUTE}?limit=1", dict[str, Any])
    except ServerError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise ServerError(
            f"{session.server} has no {ROUTE}: it is not a vllm-mmout server, or is an older release; check that"
            " --server is right"
        ) from error


def submit(session: Session, form: MultipartForm, sent: Callable[[int], None]) -> Job:
    """Upload a form to create a job, with retries. ``sent`` is called with the number of bytes sent so far.

    Args:
        session: the connection to the server.
        form: the body of the request.
        sent: called with the number of bytes sent so far. A repeated upload starts at 0.

    Raises:
        ServerError: the server refused the request, the retries are used up, or the connection broke after the whole
            upload, so that the server may have created the job.

    """
    headers = {"Content-Type": form.content_type, "Content-Length": str(form.size)}
    count = 0

    def progress(done: int) -> None:
        nonlocal count
        count = done
        sent(done)

    def upload() -> Job:
        progress(0)
        try:
            return session.ask("POST", ROUTE, Job, headers=headers, body=form.body(progress), timeout_s=_ANSWER_S)
        except TemporaryError as error:
            if not error.answered and count == form.size:
                # The server creates a job only from a complete upload, so an incomplete upload can be repeated safely.
                raise ServerError(
                    f"{error}; the upload was complete, and the server may have created a job: GET"
                    f" {session.server}{ROUTE} lists its jobs"
                ) from error
            raise

    return call_with_retries(upload, session.new_waiting().wait)


def get_job(session: Session, job: str) -> Job:
    """Return the current description of the job with the id ``job``."""
    return session.get(f"{ROUTE}/{job}", Job)


def wait(session: Session, job: Job, show: Callable[[Job], None]) -> Job:
    """Poll a job until it ends, and call ``show`` after each poll. Raise ServerError if the job failed."""
    pause = _FIRST_PAUSE
    show(job)
    while job.status not in ("completed", "failed"):
        time.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_PAUSE)
        job = get_job(session, job.id)
        show(job)
    if job.status == "failed":
        raise ServerError(job.error.message if job.error else f"the job {job.id} failed; the server does not say why")
    if not job.outputs:
        raise ServerError(f"the job {job.id} completed without a result; ask the operator of the server")
    return job


def remove(session: Session, job: str) -> None:
    """Cancel a running job, or delete a finished job. Failures are not retried, because the user is waiting."""
    try:
        session.ask("DELETE", f"{ROUTE}/{job}", dict[str, Any])
    except TemporaryError as error:
        raise ServerError(str(error)) from error
