"""The routes of OpenAI's image interface: edits, variations, generations, and the results that were stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vllm_mmout.serving.accept import accepted
from vllm_mmout.serving.answers import Work, answer, check_bare, stream
from vllm_mmout.serving.body import discard, is_json, read_form, read_json
from vllm_mmout.serving.encode import Asked
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.events import EventsResponse
from vllm_mmout.serving.fields import edit_request, edit_request_json, generation_request, variation_request
from vllm_mmout.serving.gone import Held, unless_gone
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.ranges import ranged_response
from vllm_mmout.serving.service import Service, request_id

if TYPE_CHECKING:
    from vllm_mmout.serving.fields import ImageRequest
    from vllm_mmout.serving.service import Field
    from vllm_mmout.serving.store import ResultStore
    from vllm_mmout.serving.uploads import Form

GONE = 499
"""Status of a request whose client went away, as nginx has it; nobody receives it."""


async def edits(request: Request) -> Response:
    """Images or rasters in, the model's answer out."""
    return await answered(request, lambda service, held: _edit(request, service, held, edit_request))


async def variations(request: Request) -> Response:
    """The same without a prompt."""
    return await answered(request, lambda service, held: _edit(request, service, held, variation_request))


async def generations(request: Request) -> Response:
    """A text in, the model's answer out."""
    return await answered(request, lambda service, _: _generation(request, service))


async def results(request: Request) -> Response:
    """A stored result."""
    service = request.app.state.mmout
    if not isinstance(service, Service):
        nothing = "there are no results here: the model of this server gives none"
        return error_response(ApiError(404, nothing, param="name"))
    try:
        return await get_result(request, service.store)
    except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
        return error_response(error)


async def get_result(request: Request, store: ResultStore) -> Response:
    """The answer to who fetches a stored result, or a part of it.

    Args:
        request: with the ``name`` in its path.
        store: where it may be.

    Raises:
        ApiError: there is none of that name (404), or it has no such part (416).

    """
    name = str(request.path_params["name"])
    entry = await run_sync(store.find, name)
    if entry is None:
        raise ApiError(
            404,
            f"there is no such result; results can be fetched for {store.ttl:g} seconds, and the oldest ones go when"
            " their folder is full; send the request again",
            param="name",
        )
    return ranged_response(request, entry, name, {"Cache-Control": "private, no-store"})


async def answered(
    request: Request, work: Callable[[Service, AsyncExitStack], Awaitable[Response]], *, placed: bool = True
) -> Response:
    """Do one request's work, in a place of its own; what it raises is its answer.

    Args:
        request: of a client.
        work: reads the request and makes the answer; what must live until that is sent goes onto the stack.
        placed: whether the place is taken before the work begins; else it calls `take_place`.

    """
    held = AsyncExitStack()
    try:
        service = await _admitted(request, held) if placed else service_of(request)
        return Held(await work(service, held), held)
    except ClientDisconnect:
        await held.aclose()
        return Response(status_code=GONE)
    except Exception as error:  # noqa: BLE001 - each becomes the answer to its own request
        await held.aclose()
        if isinstance(request.app.state.mmout, Service):
            count_refusal(request.app.state.mmout.observer, error)
        return error_response(error)
    except BaseException:
        await held.aclose()
        raise


async def _admitted(request: Request, held: AsyncExitStack) -> Service:
    """Give a request its place among those that are served at once."""
    try:
        service = service_of(request)
        take_place(request, held)
    except ApiError:
        await discard(request)  # so that a client which is still sending sees the answer
        raise
    return service


def take_place(request: Request, held: AsyncExitStack) -> None:
    """Count a request among those that are served at once, until the stack is closed.

    Raises:
        ApiError: there is no place (429).

    """
    state = request.app.state
    held.enter_context(state.mmout_slots)
    if getattr(state, "enable_server_load_tracking", False):  # what vLLM's /load shows
        state.server_load_metrics += 1
        held.callback(_lighter, state)


def _lighter(state: Any) -> None:
    state.server_load_metrics -= 1


def service_of(request: Request) -> Service:
    """What the routes share.

    Raises:
        ApiError: the model has no output processor.

    """
    service = request.app.state.mmout
    if isinstance(service, Service):
        return service
    raise ApiError(400, str(service), param="model")


async def _edit(
    request: Request, service: Service, held: AsyncExitStack, parse: Callable[[Form], ImageRequest]
) -> Response:
    if parse is edit_request and is_json(request):
        asked = edit_request_json(await read_json(request, service.options))
    else:
        form = await read_form(request, service.options)
        held.push_async_callback(asyncio.to_thread, form.close)
        asked = parse(form)
    data = asked.images[0] if len(asked.images) == 1 else list(asked.images)
    return await _answer(request, _work(request, service, asked, data), "image_edit", asked)


async def _generation(request: Request, service: Service) -> Response:
    asked = generation_request(await read_json(request, service.options))
    inputs = service.binding.inputs
    if inputs is not None and inputs.opens_files:
        raise ApiError(
            400,
            f"the model {service.binding.model!r} takes {inputs.takes}, no text; send one to /v1/images/edits",
            param="prompt",
        )
    return await _answer(request, _work(request, service, asked, asked.prompt, "prompt"), "image_generation", asked)


def _work(request: Request, service: Service, asked: ImageRequest, data: Any, field: Field = "image") -> Work:
    """What is to be run, checked as a whole."""
    form = Asked(
        asked.output_format, asked.output_compression, asked.background, accepted(request.headers.get("accept"))
    )
    check_bare(form, asked.options, stored=asked.response_format == "url", streamed=asked.stream)
    name = request_id(request, "image")
    work = Work(service, data, asked.options, form, name, service.adapter(asked.model), field)
    work.check()
    return work


async def _answer(request: Request, work: Work, kind: str, asked: ImageRequest) -> Response:
    if asked.stream:
        return EventsResponse(stream(work, kind), work.request_id)
    return await unless_gone(request, answer(work, request, stored=asked.response_format == "url"))
