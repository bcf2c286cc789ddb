"""The routes of jobs, below ``/v1/scenes``, modelled on OpenAI's ``/v1/videos``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.request.body import is_json, read_form
from vllm_mmout.serving.request.fields import edit_request, edit_request_json
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.response.encode import FormatChoice
from vllm_mmout.serving.response.responses import PiecesResponse, unless_gone
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded
from vllm_mmout.serving.routes import answered, service_of
from vllm_mmout.serving.service import ForwardService, Work, request_id
from vllm_mmout.wings.jobs.page import routes as page
from vllm_mmout.wings.jobs.server import openapi, results
from vllm_mmout.wings.jobs.server.board import SceneBoard
from vllm_mmout.wings.jobs.server.input_preview import input_preview
from vllm_mmout.wings.jobs.server.job import PREFIX, SceneInputs, SceneJob, keep_inputs
from vllm_mmout.wings.jobs.server.openapi import SCENES
from vllm_mmout.wings.jobs.server.runner import SceneRunner

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.service import Service

_PAGE_DEFAULT: Final = 20
_PAGE_MOST: Final = 100
"""Jobs of one page of the list."""
_ID: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)


class JobRoutes(ServerExtension):
    """Jobs, and the page that shows them."""

    def attach(self, app: FastAPI) -> None:
        """Register the routes below ``/v1/scenes``, and the page."""
        _attach(app)
        page.attach(app)

    async def start(self, service: Service, state: State) -> None:
        """Look after jobs from now on, where the model answers in one forward."""
        if isinstance(service, ForwardService):
            state.mmout_scenes = SceneRunner(await asyncio.to_thread(SceneBoard, service.store))
            state.mmout_scenes.start()


def _attach(app: FastAPI) -> None:
    one = "/v1/scenes/{scene_id}"
    for method, path, endpoint, description in (
        ("POST", "/v1/scenes", create, openapi.CREATE),
        ("GET", "/v1/scenes", scenes, openapi.LIST),
        ("POST", "/v1/scenes/preview", preview, openapi.PREVIEW),
        ("GET", one, scene, openapi.GET),
        ("DELETE", one, delete, openapi.DELETE),
        ("GET", f"{one}/content", result, openapi.CONTENT),
        ("GET", f"{one}/pixel", pixel, openapi.PIXEL),
    ):
        app.add_api_route(path, endpoint, methods=[method], tags=["scenes"], openapi_extra=description)
    app.add_api_route(f"{one}/content", result, methods=["HEAD"], include_in_schema=False)


async def create(request: Request) -> Response:
    """Make a job; it is answered as soon as the input is there."""
    return await answered(request, ForwardService, lambda service, _: _created(request, service))


async def preview(request: Request) -> Response:
    """What a page shows of an input, before any job is made of it."""
    return await answered(request, ForwardService, lambda service, _: _previewed(request, service))


async def scenes(request: Request) -> Response:
    """Some of the jobs of all servers."""
    return await _answered(request, lambda runner: _page(request, runner.board))


async def scene(request: Request) -> Response:
    """One job."""

    async def described(runner: SceneRunner) -> Response:
        return JSONResponse((await _job(request, runner.board)).described())

    return await _answered(request, described)


async def result(request: Request) -> Response:
    """The result of a job, or its picture, which grows while the job runs."""

    async def sent(runner: SceneRunner) -> Response:
        return await results.send_result(request, await _job(request, runner.board), runner)

    return await _answered(request, sent)


async def pixel(request: Request) -> Response:
    """The values of one pixel of a result."""

    async def described(runner: SceneRunner) -> Response:
        return await results.send_pixel(request, await _job(request, runner.board), runner.board.store)

    return await _answered(request, described)


async def delete(request: Request) -> Response:
    """End a job and forget it, with its results."""

    async def deleted(runner: SceneRunner) -> Response:
        job_id = _id(request)
        job = await asyncio.to_thread(runner.board.delete, job_id)
        runner.cancel(job_id)
        if job is None:
            raise _unknown(runner.board)
        return JSONResponse({"id": job_id, "object": "scene.deleted", "deleted": True})

    return await _answered(request, deleted)


async def _answered(request: Request, work: Callable[[SceneRunner], Awaitable[Response]]) -> Response:
    """Do what needs no place among the requests that are run; what it raises is the answer."""
    try:
        service_of(request, ForwardService)
        return await work(_runner(request))
    except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
        return error_response(error)


def _runner(request: Request) -> SceneRunner:
    """What runs this server's jobs, as `JobRoutes.start` has made it."""
    runner: SceneRunner = request.app.state.mmout_scenes
    return runner


async def _job(request: Request, board: SceneBoard) -> SceneJob:
    job = await asyncio.to_thread(board.get, _id(request))
    if job is None:
        raise _unknown(board)
    return job


def _id(request: Request) -> str:
    """The id in a path; "" for what no id of a job can be."""
    given = str(request.path_params["scene_id"])
    return given if _ID.fullmatch(given) else ""


def _unknown(board: SceneBoard) -> ApiError:
    return ApiError(
        404,
        f"there is no such job; finished ones are kept for {board.store.ttl:g} seconds, and the oldest results go"
        " when their folder is full; send the scene again",
        param="scene_id",
    )


async def _created(request: Request, service: ForwardService) -> Response:
    asked, inputs = await _read(request, service)
    async with AsyncExitStack() as unused:
        unused.push_async_callback(asyncio.to_thread, inputs.held.close)
        form = FormatChoice(asked.output_format, asked.output_compression, asked.background, as_file=True)
        name = request_id(request, "scene")
        work = Work(service, inputs.data, asked.options, form, name, service.adapter(asked.model))
        work.check()
        model = asked.model or service.models.registry.model_name()
        job = await _runner(request).add(work, inputs, model, service.options)
        unused.pop_all()
    return JSONResponse(job.described())


async def _previewed(request: Request, service: ForwardService) -> Response:
    _, inputs = await _read(request, service)

    def reduced() -> bytes:
        with service.sources.opened(inputs.data) as opened:
            return msgspec.json.encode(input_preview(opened, service.binding.inputs))

    async def preview_json() -> bytes:
        async with _runner(request).previews:
            return await asyncio.to_thread(reduced)

    try:
        answer = await unless_gone(request, preview_json())
    finally:
        await asyncio.to_thread(inputs.held.close)
    return PiecesResponse([Encoded(answer, "json")], MEDIA_TYPES["json"], as_text=False)


async def _read(request: Request, service: ForwardService) -> tuple[ImageRequest, SceneInputs]:
    """What a client asks for, and its files, which are the caller's to close."""
    if is_json(request):
        asked = edit_request_json(await read_json(request, service.options), SCENES)
        return asked, await asyncio.to_thread(keep_inputs, asked.images, service.sources)
    form = await read_form(request, service.options)
    try:
        asked = edit_request(form, SCENES)
        return asked, await asyncio.to_thread(keep_inputs, asked.images, service.sources)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(form.close))
        raise


async def _page(request: Request, board: SceneBoard) -> Response:
    """The page that a request asks for, by ``limit``, ``after`` and ``order``.

    Raises:
        ApiError: one of these is wrong (400), or there is no job ``after`` (404).

    """
    limit, order = _limit(request.query_params.get("limit")), _order(request.query_params.get("order"))
    after = request.query_params.get("after")
    page = await asyncio.to_thread(board.page, limit, after, order)
    if page is None:
        raise ApiError(404, f"there is no job {shown(after)}; list from the start, without after", param="after")
    jobs, more = page
    return JSONResponse(
        {
            "object": "list",
            "data": [job.described() for job in jobs],
            "first_id": jobs[0].id if jobs else None,
            "last_id": jobs[-1].id if jobs else None,
            "has_more": more,
        }
    )


def _limit(given: str | None) -> int:
    if given is None:
        return _PAGE_DEFAULT
    if not re.fullmatch(r"\d{1,9}", given, re.ASCII) or not 1 <= int(given) <= _PAGE_MOST:
        raise ApiError(400, f"limit must be 1 to {_PAGE_MOST}, got {shown(given)}", param="limit")
    return int(given)


def _order(given: str | None) -> Literal["asc", "desc"]:
    if given in (None, "desc"):
        return "desc"
    if given != "asc":
        raise ApiError(400, f"order must be asc or desc, got {shown(given)}", param="order")
    return "asc"
