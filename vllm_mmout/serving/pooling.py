"""Route ``POST /pooling``, which runs the model on the JSON value in the request's ``data``.

Requests without ``data`` go to vLLM's own route. If the server's IO Processor plugin belongs to an extension
package, ``data`` has the form that the plugin takes, as on vLLM's own route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.serving import openapi
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.image_routes import GONE, answered, take_place
from vllm_mmout.serving.request.api_key import has_key
from vllm_mmout.serving.request.body import read_body
from vllm_mmout.serving.request.fields import pooling_request
from vllm_mmout.serving.request.json_body import is_object, parse_json
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.responses import close_all, described, parts_response, unless_gone
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.serving.work import Work

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message, Receive, Scope, Send

    from vllm_mmout.serving.extension import PluginAnswer, ServerExtension

PATH = "/pooling"
_TASK = "plugin"
"""Name of vLLM's pooling task for IO Processor plugins."""
_SMALL = 1 << 16
"""Maximum size in bytes of a body that is read from a request without a valid API key, or while the server is full.

Such a body is read only to find out whether it has the field ``data``. Requests without ``data`` go to vLLM's route.
"""


def attach(app: FastAPI, extensions: Sequence[ServerExtension]) -> None:
    """Replace vLLM's ``/pooling`` route. The new route forwards requests without ``data`` to vLLM's route."""
    before = next(
        (
            route
            for route in app.routes
            if isinstance(route, APIRoute) and route.path == PATH and "POST" in (route.methods or ())
        ),
        None,
    )
    if before is None:  # a model without pooling tasks
        return
    vllm_route = before
    app.router.routes.remove(vllm_route)  # vLLM 0.31 would keep a replaced route in front

    async def pooling(request: Request) -> Response:
        """Run the model on the JSON value in ``data``, and return the results as JSON."""
        state = request.app.state
        answer = _data_handler(state, extensions)
        if not isinstance(state.mmout, ForwardService) or answer is None or not _is_json(request):
            return _Forward(vllm_route, None)
        if not has_key(request):
            return await _without_key(request, state.mmout, vllm_route)

        async def work(service: ForwardService, held: AsyncExitStack) -> Response:
            return await _answer_data(request, service, held, vllm_route, answer)

        return await answered(request, ForwardService, work, placed=False)

    app.add_api_route(PATH, pooling, methods=["POST"], openapi_extra=openapi.POOLED)


async def _answer_data(
    request: Request, service: ForwardService, held: AsyncExitStack, vllm_route: APIRoute, answer: PluginAnswer
) -> Response:
    """Call ``answer`` if a request's body has the field ``data``. Otherwise forward the request to ``vllm_route``."""
    body, full = await _read(request, service, held)
    given = await _body_with_data(body)
    if given is None:
        await held.aclose()
        return _Forward(vllm_route, bytes(body))
    if full is not None:
        raise full
    return await unless_gone(request, answer(request, service, given))


async def _without_key(request: Request, service: ForwardService, vllm_route: APIRoute) -> Response:
    """Refuse a request without a valid API key (401) if it has the field ``data``. Else forward it to ``vllm_route``.

    A body above `_SMALL` bytes goes to vLLM's route unread. That route refuses ``data``, so none of our code runs.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= len(str(_SMALL)) and int(length) <= _SMALL):
        return _Forward(vllm_route, None)
    try:
        body = await read_body(request, service.options)
        if await _body_with_data(body) is None:
            return _Forward(vllm_route, bytes(body))
    except ClientDisconnect:
        return Response(status_code=GONE)
    except ApiError as error:
        return error_response(error)
    return JSONResponse({"error": "Unauthorized"}, 401)


async def _body_with_data(body: bytearray) -> dict[str, Any] | None:
    """Return the parsed body if it is a JSON object with ``data``, else None."""
    if not is_object(body) or not (b'"data"' in body or b"\\u" in body):  # the name may be written with escapes
        return None
    values = await parse_json(body)
    return values if "data" in values else None


async def _read(request: Request, service: ForwardService, held: AsyncExitStack) -> tuple[bytearray, ApiError | None]:
    """Read the body of a request. Return (body, None), or (body, 429 error) if too many requests are running.

    The request counts as running until ``held`` is closed. The error is returned because vLLM's route may answer the
    request. The body must then have at most `_SMALL` bytes. For a larger body, the error is raised.
    """
    try:
        take_place(request, held)
    except ApiError as full:
        try:
            return await read_body(request, replace(service.options, max_upload=_SMALL)), full
        except ApiError as error:
            raise full if error.status == 413 else error from None
    return await read_body(request, service.options), None


async def _answer(request: Request, service: ForwardService, given: Mapping[str, Any]) -> Response:
    name = request_id(request, "pooling")
    fields, headers = pooling_request(given), trace_headers(request)
    work = Work.of(service, fields, given["data"], name, "data", trace_headers=headers)
    entries = await work.encoded(await work.last())
    try:
        parts = await asyncio.to_thread(_json, name, work.params.named, entries)
    finally:
        await close_all(entries)
    return parts_response([Encoded(parts, "json")], MEDIA_TYPES["json"], as_text=False)


def _json(name: str, processors: Sequence[str], entries: Sequence[Encoded]) -> bytes:
    """Encode the results of a request as JSON, in the same form as vLLM's answers for an IO Processor plugin."""
    made = [msgspec.Raw(_datum(entry)) for entry in entries]
    data = dict(zip(processors, made, strict=True)) if processors else made[0]
    return msgspec.json.encode({"request_id": name, "created_at": int(time.time()), "data": data})


def _datum(entry: Encoded) -> bytes:
    """Return a result as JSON. A file that is not JSON becomes an object with the file in base64."""
    content = entry.read(0, entry.nbytes)
    if entry.format in ("json", "geojson"):
        return content
    return msgspec.json.encode({"b64_json": content, **described(entry)})


def _is_json(request: Request) -> bool:
    """Return whether the body is declared as ``application/json``. vLLM's route refuses all other bodies."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def _data_handler(state: Any, extensions: Sequence[ServerExtension]) -> PluginAnswer | None:
    """Return the function that answers requests with the field ``data``. Return None if vLLM's own route must answer.

    This route cannot answer if the server has an IO Processor plugin that no extension package handles.
    """
    processors = getattr(getattr(state, "serving_pooling", None), "io_processors", None)  # by pooling task
    plugin = getattr(processors.get(_TASK), "io_processor", None) if isinstance(processors, Mapping) else None
    if plugin is None:
        return _answer
    found = (extension.plugin_answer(plugin) for extension in extensions)
    return next((answer for answer in found if answer is not None), None)


class _Forward(Response):
    """Response that lets another route answer the request, even if the body of the request was already read.

    ``body`` is the body that was read, or None if it was not read.
    """

    def __init__(self, route: APIRoute, body: bytes | None) -> None:
        super().__init__()
        self._route = route
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
