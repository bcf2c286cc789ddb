"""Describe jobs in OGC's JSON form (``statusInfo.yaml``, ``jobList.yaml``), and filter lists of jobs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.jobs.ogc.links import EXCEPTIONS, JOBS, RESULTS, ROOT, job_url, link, url

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.job import SceneJob

_STATUSES: Final = {"queued": "accepted", "in_progress": "running", "completed": "successful", "failed": "failed"}
DISMISSED: Final = "dismissed"
STATUSES: Final = (*_STATUSES.values(), DISMISSED)
_PAGE: Final = 100
"""Number of jobs that one query reads from the jobs table."""


def status_info(request: Request, job: SceneJob, process_id: str, *, dismissed: bool = False) -> dict[str, Any]:
    """Return the status of a job in the form of OGC's schema ``statusInfo.yaml``."""
    here, results = job_url(request, job), f"{job_url(request, job)}/results"
    links = [link(url(request, f"{ROOT}/jobs"), JOBS, "jobs")]
    if not dismissed:
        links.insert(0, link(here, "self", "status of the job"))
        links += [link(results, RESULTS, "results of the job")] if job.status == "completed" else []
        links += [link(results, EXCEPTIONS, "error of the job")] if job.status == "failed" else []
    assumed = dict.fromkeys(text for output in job.outputs for text in output.assumed)
    message = job.error.message if job.error is not None else " ".join(assumed)
    times = {"created": job.created_at, "started": job.started_at, "finished": job.completed_at}
    return {
        "processID": process_id,
        "type": "process",
        "jobID": job.id,
        "status": DISMISSED if dismissed else _STATUSES[job.status],
        "progress": job.percent,
        **({"message": message} if message else {}),
        **{name: _text(seconds) for name, seconds in times.items() if seconds is not None},
        "links": links,
    }


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on jobs, from the query parameters of a request for a list of jobs."""

    processes: tuple[str, ...] | None
    statuses: tuple[str, ...] | None
    since: float
    """Time in seconds since 1970. Jobs created before this time are left out of the list."""
    until: float
    least_duration: float
    """Minimum running time of a job in seconds. Jobs with a shorter running time are left out of the list."""
    most_duration: float

    @classmethod
    def of(cls, request: Request) -> JobFilter:
        """Create a job filter from a request's query parameters. Raise an ApiError (400) if a parameter is invalid."""
        query = request.query_params
        kinds = _listed(query, "type")
        for name, values, known in (("type", kinds, ("process",)), ("status", _listed(query, "status"), STATUSES)):
            for value in values or ():
                if value not in known:
                    raise ApiError(400, f"{name} must be {', '.join(known)}, got {shown(value)}", param=name)
        since, until = _interval(query.get("datetime", "../.."))
        return cls(
            _listed(query, "processID"),
            _listed(query, "status"),
            since,
            until,
            _seconds(query, "minDuration", 0),
            _seconds(query, "maxDuration", math.inf),
        )

    def accepts(self, job: SceneJob, process_id: str) -> bool:
        """Return whether a job meets all conditions of this job filter."""
        if self.processes is not None and process_id not in self.processes:
            return False
        if self.statuses is not None and _STATUSES[job.status] not in self.statuses:
            return False
        created = datetime.fromisoformat(_text(job.created_at)).timestamp()  # as clients see it, in milliseconds
        if not self.since <= created <= self.until:
            return False
        if (self.least_duration, self.most_duration) == (0, math.inf):
            return True
        if job.started_at is None:  # a waiting job has not begun to last
            return False
        return self.least_duration <= (job.completed_at or time.time()) - job.started_at <= self.most_duration


def jobs_page(
    board: SceneBoard, limit: int, after: str | None, accepts: Callable[[SceneJob], bool], kind: str
) -> tuple[list[SceneJob], bool]:
    """Return the newest jobs that ``accepts`` allows, up to ``limit``, and whether more such jobs exist.

    Args:
        board: the jobs of all servers.
        limit: the maximum number of jobs.
        after: the id of the job after which the list starts, or None to start with the newest job.
        accepts: returns whether a job belongs to the list.
        kind: prefix of the ids of the jobs.

    """
    taken: list[SceneJob] = []
    while True:
        page = board.page(_PAGE, after, "desc", kind)
        if page is None:
            raise ApiError(400, f"there is no job {shown(after)}; list from the start, without after", param="after")
        jobs, more = page
        taken += filter(accepts, jobs)
        if len(taken) > limit or not more:
            return taken[:limit], len(taken) > limit
        after = jobs[-1].id


def _text(seconds: float) -> str:
    """Return a time as text, such as 2024-05-01T12:00:00.000Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _listed(query: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    """Split the comma-separated query parameter ``name`` into its values. Return None if the parameter is missing."""
    text = query.get(name)
    return None if text is None else tuple(text.split(","))


def _seconds(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ApiError(400, f"{name} must be a whole number of seconds, got {shown(text)}", param=name)
    return int(text)


def _interval(text: str) -> tuple[float, float]:
    """Parse a time or an interval "START/END". Return start and end, in seconds since 1970."""
    start, slash, end = text.partition("/")
    ends = (start, end) if slash else (start, start)
    return _time(ends[0], -math.inf, text), _time(ends[1], math.inf, text)


def _time(text: str, default: float, whole: str) -> float:
    if text in ("", ".."):
        if "/" in whole:
            return default
    elif "T" in text.upper():
        try:
            moment = datetime.fromisoformat(text.upper())
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.timestamp()
    raise ApiError(
        400,
        f"datetime must be a time such as 2024-05-01T12:00:00Z, or an interval such as 2024-05-01T00:00:00Z/.., got"
        f" {shown(whole)}",
        param="datetime",
    )
