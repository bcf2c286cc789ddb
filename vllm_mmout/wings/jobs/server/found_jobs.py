"""What the routes of all kinds of jobs share: looking one up, listing some, deleting one."""

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
from vllm_mmout.wings.jobs.server import results

if TYPE_CHECKING:
    from vllm_mmout.wings.jobs.server.board import SceneBoard
    from vllm_mmout.wings.jobs.server.job import SceneJob
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

Work: TypeAlias = Callable[[Request, "SceneRunner"], Awaitable[Response]]
_PAGE_MOST: Final = 100
"""Jobs of one page of the list."""
_REST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobKind:
    """Jobs of one kind, which only its own routes know."""

    prefix: str
    """What ids begin with."""
    parameter: str
    """Of the path, and of errors."""
    again: str
    """What a client does whose job is gone."""
    deleted: str
    """OpenAI's name of the object that says that one was deleted."""
    described: Callable[[SceneJob], dict[str, Any]]

    def id_of(self, request: Request) -> str:
        """The id in a path; "" for what no id of such a job can be."""
        given = str(request.path_params[self.parameter])
        return given if given.startswith(self.prefix) and _REST.fullmatch(given[len(self.prefix) :]) else ""


def unplaced(work: Work, check: Callable[[ForwardService], object] = lambda _: None) -> Any:
    """A route that needs no place among the requests that are run; what its work raises is the answer."""

    async def route(request: Request) -> Response:
        try:
            check(service_of(request, ForwardService))
            return await work(request, request.app.state.mmout_scenes)
        except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
            return error_response(error)

    # Not functools.wraps, by which FastAPI would find the parameters of the work.
    route.__name__, route.__doc__ = work.__name__.lstrip("_"), work.__doc__
    return route


async def listed(request: Request, board: SceneBoard, kind: JobKind) -> Response:
    """Some of the jobs of all servers."""
    limit = results.whole_number(request, "limit", f"1 to {_PAGE_MOST}", least=1, most=_PAGE_MOST, usual="20")
    order = results.one_of(request, "order", "asc", "desc", usual="desc")
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


async def found(request: Request, board: SceneBoard, kind: JobKind) -> SceneJob:
    """The job that a path names."""
    job = await asyncio.to_thread(board.get, kind.id_of(request))
    if job is None:
        raise _unknown(board, kind)
    return job


async def deleted(request: Request, runner: SceneRunner, kind: JobKind) -> Response:
    """End a job and forget it, with its results."""
    job_id = kind.id_of(request)
    job = await asyncio.to_thread(runner.board.delete, job_id)
    runner.cancel(job_id)
    if job is None:
        raise _unknown(runner.board, kind)
    return JSONResponse({"id": job_id, "object": kind.deleted, "deleted": True})


def _unknown(board: SceneBoard, kind: JobKind) -> ApiError:
    return ApiError(
        404,
        f"there is no such job; finished ones are kept for {board.store.ttl:g} seconds, and the oldest results go"
        f" when their folder is full; {kind.again}",
        param=kind.parameter,
    )
