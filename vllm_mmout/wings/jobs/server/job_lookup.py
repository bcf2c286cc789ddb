"""Look up, list and delete jobs, for the routes of scenes and the routes of videos."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.image_routes import service_of
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.wings.jobs.server import result_responses
from vllm_mmout.wings.jobs.server.job import PREFIX, SceneJob

if TYPE_CHECKING:
    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

Work: TypeAlias = Callable[[Request, "SceneRunner"], Awaitable[Response]]
_MAX_JOBS_PER_PAGE: Final = 100
_REST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobKind:
    """Type of jobs, either scenes or videos. Each type has its own routes, which find only jobs of this type."""

    prefix: str
    """Prefix of the ids of jobs of this type, such as "video_"."""
    parameter: str
    """Name of the path parameter that holds the job id. Error responses refer to it."""
    advice: str
    """Advice to a client whose job no longer exists, such as "send the scene again"."""
    deleted: str
    """Value of the field ``object`` in the response to the deletion of a job, such as "scene.deleted"."""
    described: Callable[[SceneJob], dict[str, Any]]
    """Function that converts a job to its JSON description."""
    error_type: str | None = None
    """Error type in the response for a job that does not exist. None means vLLM's error type for HTTP status 404."""

    def id_of(self, request: Request) -> str:
        """Return the job id in a request's path, or "" if the id is malformed or belongs to another type of job."""
        job_id = str(request.path_params[self.parameter])
        return job_id if job_id.startswith(self.prefix) and _REST.fullmatch(job_id[len(self.prefix) :]) else ""


SCENE_KIND: Final = JobKind(PREFIX, "scene_id", "send the scene again", "scene.deleted", SceneJob.described)
"""Job type for jobs that process a scene."""


def exempt_handler(work: Work, check: Callable[[ForwardService], object] = lambda _: None) -> Any:
    """Return a route handler that is exempt from the limit on waiting requests.

    The handler calls ``check`` and then ``work``. An exception of either becomes the error response.
    """

    async def route(request: Request) -> Response:
        try:
            check(service_of(request, ForwardService))
            return await work(request, request.app.state.mmout_scenes)
        except Exception as error:  # noqa: BLE001 - becomes the response to this request
            return error_response(error)

    # functools.wraps would make FastAPI read the parameters of ``work`` instead of the parameters of ``route``.
    route.__name__, route.__doc__ = work.__name__.lstrip("_"), work.__doc__
    return route


async def list_jobs(request: Request, board: SceneBoard, kind: JobKind) -> Response:
    """Return a response with one page of jobs, chosen by the query parameters limit, order and after."""
    limit = result_responses.whole_number(
        request, "limit", f"1 to {_MAX_JOBS_PER_PAGE}", least=1, most=_MAX_JOBS_PER_PAGE, usual="20"
    )
    order = result_responses.one_of(request, "order", "asc", "desc", usual="desc")
    after = request.query_params.get("after")
    page = await asyncio.to_thread(board.page, limit, after, order, kind.prefix)
    if page is None:
        raise ApiError(404, f"there is no job {shown(after)}; list from the start, without after", param="after")
    jobs, more = page
    return JSONResponse(
        {
            "object": "list",
            "data": [kind.described(job) for job in jobs],
            "first_id": jobs[0].id if jobs else None,
            "last_id": jobs[-1].id if jobs else None,
            "has_more": more,
        }
    )


async def find_job(request: Request, board: SceneBoard, kind: JobKind) -> SceneJob:
    """Return the job with the id in the request's path. Raise an ApiError (404) if the job does not exist."""
    job = await asyncio.to_thread(board.get, kind.id_of(request))
    if job is None:
        raise _unknown(board, kind)
    return job


async def remove_job(request: Request, runner: SceneRunner, kind: JobKind) -> SceneJob:
    """Cancel and delete the job whose id is in the request's path. Return the job in its last state.

    The job's results are deleted, too. Raise an ApiError (404) if the job does not exist.
    """
    job_id = kind.id_of(request)
    job = await asyncio.to_thread(runner.board.delete, job_id)
    runner.cancel(job_id)
    if job is None:
        raise _unknown(runner.board, kind)
    return job


async def delete_job(request: Request, runner: SceneRunner, kind: JobKind) -> Response:
    """Delete the job with the id in the request's path, and return the HTTP response."""
    job = await remove_job(request, runner, kind)
    return JSONResponse({"id": job.id, "object": kind.deleted, "deleted": True})


def _unknown(board: SceneBoard, kind: JobKind) -> ApiError:
    return ApiError(
        404,
        f"there is no such job; finished jobs are kept for {board.store.ttl:g} seconds, and the oldest results are"
        f" removed when their folder is full; {kind.advice}",
        kind=kind.error_type,
        param=kind.parameter,
    )
