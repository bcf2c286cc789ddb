"""The jobs of a server, as it describes them: making one, following it, taking it away."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec

from vllm_mmout.wings.jobs.client.form import Form
from vllm_mmout.wings.jobs.client.session import ServerError, Session, TemporaryError

ROUTE = "/v1/scenes"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
"""Seconds between two looks at a job: short ones end soon, long ones are asked for rarely."""
_ANSWER_S = 300.0
"""Seconds that a server has for its answer once it has the whole upload, which it may still be writing."""

Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,200}$")]
"""Of a job; stands in addresses, and in what a user is told to type."""
Name = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]{0,199}$")]
"""Of a processor; stands in names of files here."""


class Tiles(msgspec.Struct, frozen=True):
    """How many of a scene's tiles are done."""

    done: int
    total: int


class Class(msgspec.Struct, frozen=True):
    """One class of a result."""

    id: int
    name: str | None = None


class Output(msgspec.Struct, frozen=True):
    """One result of a job."""

    processor: Name
    output_format: str
    bytes: int
    classes: tuple[Class, ...] | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes from 0; None where not all have one."""
        found = {one.id: one.name for one in self.classes or () if one.name is not None}
        names = tuple(found[number] for number in range(len(found)) if number in found)
        return names if names and len(names) == len(self.classes or ()) else None


class Failure(msgspec.Struct, frozen=True):
    """Why a job failed."""

    message: str


class Job(msgspec.Struct, frozen=True):
    """A job as the server describes it."""

    id: Id
    status: Literal["queued", "in_progress", "completed", "failed"]
    name: str = ""
    tiles: Tiles | None = None
    outputs: tuple[Output, ...] = ()
    error: Failure | None = None
    warnings: tuple[str, ...] = ()
    """What the server assumed about the input; older servers do not say it."""


def check_server(session: Session) -> None:
    """See that a server is there, takes the key, and has jobs, before much is sent to it."""
    try:
        session.get(f"{ROUTE}?limit=1", dict[str, Any])
    except ServerError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise ServerError(
            f"{session.server} has no {ROUTE}: it is no server of vllm-mmout, or an older one; see whether --server is"
            " right"
        ) from error


def submit(session: Session, form: Form, sent: Callable[[int], None]) -> Job:
    """Send a scene; a full server is asked again, and an upload that broke off is sent again."""
    headers = {"Content-Type": form.content_type, "Content-Length": str(form.size)}
    retries = session.retries()
    count = 0

    def progress(done: int) -> None:
        nonlocal count
        count = done
        sent(done)

    while True:
        progress(0)
        try:
            return session.ask("POST", ROUTE, Job, headers=headers, body=form.body(progress), timeout_s=_ANSWER_S)
        except TemporaryError as error:
            if not error.answered and count == form.size:
                # A server makes no job of a form that is not whole, so that all others can be sent again.
                raise ServerError(
                    f"{error}; all was sent, and the server may have made a job of it: GET {session.server}{ROUTE}"
                    " lists those it has"
                ) from error
            retries.wait(error)


def get_job(session: Session, job: str) -> Job:
    """What the server says of a job now."""
    return session.get(f"{ROUTE}/{job}", Job)


def wait(session: Session, job: Job, show: Callable[[Job], None]) -> Job:
    """Follow a job until it ends."""
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
        raise ServerError(f"the job {job.id} is completed without a result; ask whoever runs the server")
    return job


def remove(session: Session, job: str) -> None:
    """Cancel a job that runs, or remove one that has ended; once, as somebody waits for it."""
    try:
        session.ask("DELETE", f"{ROUTE}/{job}", dict[str, Any])
    except TemporaryError as error:
        raise ServerError(str(error)) from error
