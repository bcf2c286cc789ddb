"""HTTP routes of OGC API - Processes (Part 1: Core 1.0) below ``/ogc``. They create and show jobs of scenes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Mount, Route

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import answered, service_of
from vllm_mmout.serving.request.api_key import has_key
from vllm_mmout.serving.response.responses import discard, unless_gone
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.wings.jobs.ogc import api_definition
from vllm_mmout.wings.jobs.ogc.exceptions import NO_SUCH_JOB, exception_response
from vllm_mmout.wings.jobs.ogc.execute_request import read_execute_request
from vllm_mmout.wings.jobs.ogc.job_results import send_results
from vllm_mmout.wings.jobs.ogc.job_status import JobFilter, jobs_page, status_info
from vllm_mmout.wings.jobs.ogc.links import API, ROOT, header, job_url, link, url
from vllm_mmout.wings.jobs.ogc.processes import description, process_id_of, process_in, processes, summary
from vllm_mmout.wings.jobs.server.job import PREFIX
from vllm_mmout.wings.jobs.server.job_lookup import JobKind, find_job, remove_job
from vllm_mmout.wings.jobs.server.result_responses import whole_number
from vllm_mmout.wings.jobs.server.scene_work import add_scene

if TYPE_CHECKING:
    from fastapi import FastAPI

    from vllm_mmout.wings.jobs.server.job import SceneJob
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

Work: TypeAlias = Callable[[Request, ForwardService], Awaitable[Response]]
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MAX_ENTRIES: Final = 1000
"""Maximum number of entries in one response with a list."""
_KIND: Final = JobKind(PREFIX, "jobID", "execute the process again", "", lambda job: job.described(), NO_SUCH_JOB)


def attach(app: FastAPI) -> None:
    """Register the routes of OGC API Processes on the app. Errors below ``/ogc`` get OGC's error documents."""
    routes = [
        Route(path, _guarded(work), methods=[method])
        for method, path, work in (
            ("GET", "/", _landing_page),
            ("GET", "/api", _api),
            ("GET", "/conformance", _conformance),
            ("GET", "/processes", _processes),
            ("GET", "/processes/{processID}", _process),
            ("GET", "/jobs", _jobs),
            ("GET", "/jobs/{jobID}", _job),
            ("DELETE", "/jobs/{jobID}", _dismiss),
            ("GET", "/jobs/{jobID}/results", _results),
        )
    ]
    routes.append(Route("/processes/{processID}/execution", _execute, methods=["POST"]))
    root = [Route(ROOT, _guarded(_landing_page), methods=["GET"])]
    below = Mount(ROOT, routes=[*routes, _catch_all_route("/{rest:path}", routes)])
    app.router.routes += [*root, _catch_all_route(ROOT, root), below]


def _catch_all_route(path: str, routes: Sequence[Route]) -> Route:
    """Return a catch-all route. It answers requests that match none of ``routes`` with an error."""
    return Route(path, _guarded(partial(_refuse, routes)), methods=_METHODS)


def _guarded(work: Work) -> Callable[[Request], Awaitable[Response]]:
    """Return a route handler that checks the API key and then calls ``work``. Exceptions become error documents."""

    async def route(request: Request) -> Response:
        try:
            _check_key(request)
            return await work(request, service_of(request, ForwardService))
        except Exception as error:  # noqa: BLE001 - becomes the response to this request
            return exception_response(request, error)

    return route


def _check_key(request: Request) -> None:
    if not has_key(request):
        message = "this server needs its API key; send it as the header Authorization: Bearer KEY"
        raise ApiError(401, message, headers={"WWW-Authenticate": "Bearer"})


async def _execute(request: Request) -> Response:
    """Create a job. Wait for it and return its results, or return its status if the client prefers that."""
    try:
        _check_key(request)
    except ApiError as error:
        await discard(request)
        return exception_response(request, error)

    def work(service: ForwardService, _: AsyncExitStack) -> Awaitable[Response]:
        return _executed(request, service)

    return await answered(request, ForwardService, work, refuse=exception_response)


async def _executed(request: Request, service: ForwardService) -> Response:
    try:
        process = process_in(request, service)
    except ApiError:
        await discard(request)
        raise
    asked = await read_execute_request(request, service.options, process)
    async with AsyncExitStack() as unused:
        job = await add_scene(request, service, asked.image_request, unused, delivery=asked.delivery)
    if _prefers_async(request):
        return _accepted(request, job, process.id, {"Preference-Applied": "respond-async"})
    runner: SceneRunner = request.app.state.mmout_scenes
    try:
        await unless_gone(request, runner.ended(job.id))
    except BaseException:  # the client disconnected before it got the id of the job
        runner.cancel(job.id)
        await asyncio.shield(asyncio.to_thread(runner.board.delete, job.id))
        raise
    job = await _current_job(runner, job)
    if not job.finished:  # the engine has died, and another server goes on with the job
        return _accepted(request, job, process.id, {})
    response = await send_results(request, job, runner.board.store)
    response.headers.append("Link", header(job_url(request, job), "monitor"))
    return response


def _accepted(request: Request, job: SceneJob, process_id: str, headers: dict[str, str]) -> Response:
    """Return the response to the creation of a job: status 201 and a description of the job."""
    headers = {"Location": job_url(request, job), **headers}
    return JSONResponse(status_info(request, job, process_id), 201, headers)


def _prefers_async(request: Request) -> bool:
    """Return whether the request header ``Prefer: respond-async`` (RFC 7240) asks for a job in the background."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(each.partition(";")[0].strip().lower() == "respond-async" for each in preferences)


async def _current_job(runner: SceneRunner, job: SceneJob) -> SceneJob:
    """Return a job in its current state. Raise an ApiError (404) if the job was deleted."""
    current = await asyncio.to_thread(runner.board.get, job.id)
    if current is None:
        raise ApiError(404, "the job was dismissed before it ended", kind=NO_SUCH_JOB)
    return current


async def _landing_page(request: Request, service: ForwardService) -> Response:
    del service
    return JSONResponse(api_definition.landing_page(request))


async def _conformance(request: Request, service: ForwardService) -> Response:
    del request, service
    return JSONResponse({"conformsTo": list(api_definition.CONFORMANCE)})


async def _api(request: Request, service: ForwardService) -> Response:
    del service
    return JSONResponse(api_definition.definition(request), media_type=API)


async def _processes(request: Request, service: ForwardService) -> Response:
    limit = _limit(request)
    offset = whole_number(request, "offset", "a whole number from 0", usual="0")
    served = list(processes(service).values())
    page, path = served[offset : offset + limit], f"{ROOT}/processes"
    links = [link(url(request, path), "self", "processes")]
    if offset + limit < len(served):
        links.append(link(url(request, path, limit=limit, offset=offset + limit), "next", "next processes"))
    return JSONResponse({"processes": [summary(request, process) for process in page], "links": links})


async def _process(request: Request, service: ForwardService) -> Response:
    return JSONResponse(description(request, process_in(request, service)))


async def _jobs(request: Request, service: ForwardService) -> Response:
    limit, chosen = _limit(request), JobFilter.of(request)
    served, runner = processes(service), request.app.state.mmout_scenes

    def accepts(job: SceneJob) -> bool:
        return chosen.accepts(job, process_id_of(job.model, served))

    after = request.query_params.get("after")
    jobs, more = await asyncio.to_thread(jobs_page, runner.board, limit, after, accepts, PREFIX)
    links = [link(str(request.url), "self", "jobs")]
    if more:
        links.append(link(str(request.url.include_query_params(after=jobs[-1].id)), "next", "next jobs"))
    infos = [status_info(request, job, process_id_of(job.model, served)) for job in jobs]
    return JSONResponse({"jobs": infos, "links": links})


async def _job(request: Request, service: ForwardService) -> Response:
    job = await find_job(request, request.app.state.mmout_scenes.board, _KIND)
    return JSONResponse(status_info(request, job, process_id_of(job.model, processes(service))))


async def _dismiss(request: Request, service: ForwardService) -> Response:
    job = await remove_job(request, request.app.state.mmout_scenes, _KIND)
    process_id = process_id_of(job.model, processes(service))
    return JSONResponse(status_info(request, job, process_id, dismissed=True))


async def _results(request: Request, service: ForwardService) -> Response:
    del service
    board = request.app.state.mmout_scenes.board
    return await send_results(request, await find_job(request, board, _KIND), board.store)


async def _refuse(routes: Sequence[Route], request: Request, service: ForwardService) -> Response:
    """Raise an ApiError: 405 if the path in the request is one of ``routes``, otherwise 404."""
    del service
    methods = sorted(
        method for route in routes if route.matches(request.scope)[0] is Match.PARTIAL for method in route.methods or ()
    )
    if methods:
        allowed = ", ".join(methods)
        raise ApiError(405, f"this path takes {allowed}, not {request.method}", headers={"Allow": allowed})
    raise ApiError(404, f"there is no such path; the interface starts at {ROOT}")


def _limit(request: Request) -> int:
    """Return the query parameter ``limit``, at most `_MAX_ENTRIES`. Raise an ApiError (400) if it is invalid."""
    return min(_MAX_ENTRIES, whole_number(request, "limit", "1 or more", least=1, usual="10"))
