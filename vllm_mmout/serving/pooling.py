"""``POST /pooling`` with ``data``: any JSON for the model's input mapper; all else is vLLM's route, as it was.

Of a server with the IO Processor plugin ``mmout`` it is what that takes, as on vLLM's own route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from vllm import envs
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from vllm_mmout.engine.io_plugin import loaded_plugin, naming_plugin
from vllm_mmout.serving import openapi
from vllm_mmout.serving.admission import GONE, answered, service_of, take_place
from vllm_mmout.serving.answers import Work
from vllm_mmout.serving.body import parse_json, read_body
from vllm_mmout.serving.encode import Asked
from vllm_mmout.serving.encoded import MEDIA_TYPES, Encoded
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.fields import pooling_request
from vllm_mmout.serving.gone import unless_gone
from vllm_mmout.serving.json_fields import is_object
from vllm_mmout.serving.plugin_answer import plugin_answer
from vllm_mmout.serving.responses import PiecesResponse, close_all
from vllm_mmout.serving.service import Service, request_id

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message, Receive, Scope, Send

PATH = "/pooling"
_SMALL = 1 << 16
"""Bytes of a body that is read to see whose it is without a place for it."""


def attach(app: FastAPI) -> None:
    """Put our route in front of vLLM's, which goes on answering what is not for ours.

    Args:
        app: the server's, with vLLM's routes.

    """
    before = next(
        (
            route
            for route in app.routes
            if isinstance(route, APIRoute) and route.path == PATH and "POST" in (route.methods or ())
        ),
        None,
    )
    if before is None:  # the model has no such task
        return
    vllms = before

    async def pooling(request: Request) -> Response:
        """Any JSON in, the model's answer out."""
        state = request.app.state
        if not isinstance(state.mmout, Service) or _has_foreign_plugin(state) or not _is_json(request):
            return _Passed(vllms, None)
        if not _has_key(request):
            return await _without_key(request, state.mmout, vllms)

        async def taken(service: Service, held: AsyncExitStack) -> Response:
            return await _taken(request, service, held, vllms)

        return await answered(request, service_of, taken, placed=False)

    app.add_api_route(PATH, pooling, methods=["POST"], openapi_extra=openapi.POOLING)


async def _taken(request: Request, service: Service, held: AsyncExitStack, vllms: APIRoute) -> Response:
    """Answer a request that is for us; any other one goes on, and no longer has a place among ours."""
    body, full = await _read(request, service, held)
    given = await _given(body)
    if given is None:
        await held.aclose()
        return _Passed(vllms, bytes(body))
    if full is not None:
        raise full
    answer = plugin_answer if naming_plugin(_processors(request.app.state)) is not None else _answer
    return await unless_gone(request, answer(request, service, given))


async def _without_key(request: Request, service: Service, vllms: APIRoute) -> Response:
    """Refuse a small body that is for us, as vLLM's own routes below /v1 do; any other one goes on unread.

    vLLM's route takes no ``data``, so that nothing of ours runs.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= len(str(_SMALL)) and int(length) <= _SMALL):
        return _Passed(vllms, None)
    try:
        body = await read_body(request, service.options)
        if await _given(body) is None:
            return _Passed(vllms, bytes(body))
    except ClientDisconnect:
        return Response(status_code=GONE)
    except ApiError as error:
        return error_response(error)
    return JSONResponse({"error": "Unauthorized"}, 401)


async def _given(body: bytearray) -> dict[str, Any] | None:
    """What a request holds that is for us; None of one that is for vLLM.

    Raises:
        ApiError: it looks like one for us, and is no JSON that we take.

    """
    if not is_object(body) or not (b'"data"' in body or b"\\u" in body):  # a name may be written with escapes
        return None
    given = await parse_json(body)
    return given if "data" in given else None


async def _read(request: Request, service: Service, held: AsyncExitStack) -> tuple[bytearray, ApiError | None]:
    """Read a body in a place of its own; where there is none only a small one, which may be for vLLM's route.

    Returns:
        The body; what says that there was no place.

    Raises:
        ApiError: it cannot be read, or there was no place and it is not small.

    """
    try:
        take_place(request, held)
    except ApiError as full:
        try:
            return await read_body(request, replace(service.options, max_upload=_SMALL)), full
        except ApiError as error:
            raise full if error.status == 413 else error from None
    return await read_body(request, service.options), None


async def _answer(request: Request, service: Service, given: dict[str, Any]) -> Response:
    asked = pooling_request(given)
    form = Asked(asked.output_format, asked.output_compression, asked.background)
    name = request_id(request, "pooling")
    work = Work(service, given["data"], asked.options, form, name, service.adapter(asked.model), "data")
    work.check()
    results = await work.result()
    try:
        parts = await asyncio.to_thread(_json, name, work.named, results.entries)
    finally:
        await close_all(results.entries)
    return PiecesResponse([Encoded(parts, "json")], MEDIA_TYPES["json"], as_text=False)


def _json(name: str, processors: Sequence[str], entries: Sequence[Encoded]) -> bytes:
    """What vLLM answers where an IO plugin made the data."""
    made = [msgspec.Raw(_datum(entry)) for entry in entries]
    data = dict(zip(processors, made, strict=True)) if processors else made[0]
    return msgspec.json.encode({"request_id": name, "created_at": int(time.time()), "data": data})


def _datum(entry: Encoded) -> bytes:
    """JSON as it is; anything else as in an answer of images."""
    content = entry.read(0, entry.nbytes)
    if entry.format in ("json", "geojson"):
        return content
    own = None if entry.format in MEDIA_TYPES else entry.media_type
    known = {"output_format": entry.format, "size": entry.size, "background": entry.background, "media_type": own}
    return msgspec.json.encode({"b64_json": content, **{key: value for key, value in known.items() if value}})


def _is_json(request: Request) -> bool:
    """Whether the body is JSON; vLLM's route refuses what is not."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def _has_foreign_plugin(state: Any) -> bool:
    """Whether an IO Processor plugin that is not ours takes ``data``."""
    processors = _processors(state)
    return loaded_plugin(processors) is not None and naming_plugin(processors) is None


def _processors(state: Any) -> Any:
    """What vLLM's route makes of requests, by pooling task."""
    return getattr(getattr(state, "serving_pooling", None), "io_processors", None)


def _has_key(request: Request) -> bool:
    """Whether a request carries the server's key; vLLM asks for it below /v1 alone."""
    keys = [key for key in (request.app.state.args.api_key or [envs.VLLM_API_KEY]) if key]
    return not keys or AuthenticationMiddleware(request.app, keys).verify_token(request.headers)


class _Passed(Response):
    """The answer of another route.

    Args:
        route: the other route.
        body: of the request where it was read; None where it was not.

    """

    def __init__(self, route: APIRoute, body: bytes | None) -> None:
        super().__init__()
        self._route = route
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have it answer."""
        body = self._body

        async def again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        _, found = self._route.matches(scope)
        await self._route.handle({**scope, **found}, again, send)
