"""The routes of jobs, below ``/v1/scenes``, modelled on OpenAI's ``/v1/videos``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.serving.admission import answered, service_of
from vllm_mmout.serving.answers import Work
from vllm_mmout.serving.body import is_json, read_form, read_json
from vllm_mmout.serving.encode import Asked
from vllm_mmout.serving.encoded import MEDIA_TYPES, Encoded
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.fields import scene_request, scene_request_json
from vllm_mmout.serving.gone import unless_gone
from vllm_mmout.serving.responses import PiecesResponse
from vllm_mmout.serving.scenes import content, listing, openapi
from vllm_mmout.serving.scenes.inputs import SceneInputs, kept
from vllm_mmout.serving.scenes.look import look
from vllm_mmout.serving.scenes.record import PREFIX, SceneJob
from vllm_mmout.serving.service import Service, request_id

if TYPE_CHECKING:
    from fastapi import FastAPI

    from vllm_mmout.serving.fields import ImageRequest

_ID: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)


def attach(app: FastAPI) -> None:
    """Register the routes.

    Args:
        app: the server's.

    """
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
    return await answered(request, service_of, lambda service, _: _created(request, service))


async def preview(request: Request) -> Response:
    """What a page shows of an input, before any job is made of it."""
    return await answered(request, service_of, lambda service, _: _previewed(request, service))


async def scenes(request: Request) -> Response:
    """Some of the jobs of all servers."""
    return await _simply(request, lambda service: listing.listed(request, service.scenes.board))


async def scene(request: Request) -> Response:
    """One job."""

    async def told(service: Service) -> Response:
        return JSONResponse((await _job(request, service)).described())

    return await _simply(request, told)


async def result(request: Request) -> Response:
    """The result of a job, or its picture, which grows while the job runs."""

    async def sent(service: Service) -> Response:
        return await content.sent(request, await _job(request, service), service.scenes)

    return await _simply(request, sent)


async def pixel(request: Request) -> Response:
    """The values of one pixel of a result."""

    async def told(service: Service) -> Response:
        return await content.pixel(request, await _job(request, service), service.store)

    return await _simply(request, told)


async def delete(request: Request) -> Response:
    """End a job and forget it, with its results."""

    async def deleted(service: Service) -> Response:
        job_id = _id(request)
        found = await asyncio.to_thread(service.scenes.board.delete, job_id)
        service.scenes.cancel(job_id)
        if found is None:
            raise _unknown(service)
        return JSONResponse({"id": job_id, "object": "scene.deleted", "deleted": True})

    return await _simply(request, deleted)


async def _simply(request: Request, work: Callable[[Service], Awaitable[Response]]) -> Response:
    """Do what needs no place among the requests that are run; what it raises is the answer."""
    try:
        return await work(service_of(request))
    except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
        return error_response(error)


async def _job(request: Request, service: Service) -> SceneJob:
    job = await asyncio.to_thread(service.scenes.board.get, _id(request))
    if job is None:
        raise _unknown(service)
    return job


def _id(request: Request) -> str:
    """The id in a path; one that no job can have is as good as any other that none has."""
    given = str(request.path_params["scene_id"])
    return given if _ID.fullmatch(given) else ""


def _unknown(service: Service) -> ApiError:
    return ApiError(
        404,
        f"there is no such job; finished ones are kept for {service.store.ttl:g} seconds, and the oldest results go"
        " when their folder is full; send the scene again",
        param="scene_id",
    )


async def _created(request: Request, service: Service) -> Response:
    asked, inputs = await _read(request, service)
    async with AsyncExitStack() as unused:
        unused.push_async_callback(asyncio.to_thread, inputs.held.close)
        form = Asked(asked.output_format, asked.output_compression, asked.background, as_file=True)
        name = request_id(request, "scene")
        work = Work(service, inputs.data, asked.options, form, name, service.adapter(asked.model))
        work.check()
        model = asked.model or service.models.registry.model_name()
        job = await service.scenes.add(work, inputs, model, service.options)
        unused.pop_all()
    return JSONResponse(job.described())


async def _previewed(request: Request, service: Service) -> Response:
    _, inputs = await _read(request, service)

    def looked() -> bytes:
        with service.sources.opened(inputs.data) as opened:
            return msgspec.json.encode(look(opened, service.binding.inputs))

    async def found() -> bytes:
        async with service.scenes.looks:
            return await asyncio.to_thread(looked)

    try:
        answer = await unless_gone(request, found())
    finally:
        await asyncio.to_thread(inputs.held.close)
    return PiecesResponse([Encoded(answer, "json")], MEDIA_TYPES["json"], as_text=False)


async def _read(request: Request, service: Service) -> tuple[ImageRequest, SceneInputs]:
    """What a client asks for, and its files, which are the caller's to close."""
    if is_json(request):
        asked = scene_request_json(await read_json(request, service.options))
        return asked, await _kept(asked, service)
    form = await read_form(request, service.options)
    try:
        asked = scene_request(form)
        return asked, await _kept(asked, service)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(form.close))
        raise


async def _kept(asked: ImageRequest, service: Service) -> SceneInputs:
    return await asyncio.to_thread(kept, asked.images, service.sources)
