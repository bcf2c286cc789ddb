"""The routes of OpenAI's image interface: edits, variations, generations, and the results that were stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.serving.accept import accepted
from vllm_mmout.serving.admission import answered, service_of, store_of, token_service_of
from vllm_mmout.serving.answers import Work, answer, check_bare, stream
from vllm_mmout.serving.body import is_json, read_form, read_json
from vllm_mmout.serving.encode import Asked
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.events import EventsResponse
from vllm_mmout.serving.fields import edit_request, edit_request_json, generation_request, variation_request
from vllm_mmout.serving.gone import unless_gone
from vllm_mmout.serving.ranges import ranged_response
from vllm_mmout.serving.service import request_id
from vllm_mmout.serving.tokens.generations import generated_images
from vllm_mmout.serving.tokens.service import TokenService

if TYPE_CHECKING:
    from vllm_mmout.serving.fields import ImageRequest
    from vllm_mmout.serving.service import Field, Service
    from vllm_mmout.serving.store import ResultStore
    from vllm_mmout.serving.uploads import Form


async def edits(request: Request) -> Response:
    """Images or rasters in, the model's answer out."""
    return await answered(request, service_of, lambda service, held: _edit(request, service, held, edit_request))


async def variations(request: Request) -> Response:
    """The same without a prompt."""
    return await answered(request, service_of, lambda service, held: _edit(request, service, held, variation_request))


async def generations(request: Request) -> Response:
    """A text in, the model's answer out; of a model that generates tokens pictures."""
    if isinstance(request.app.state.mmout, TokenService):
        return await answered(request, token_service_of, lambda service, _: generated_images(request, service))
    return await answered(request, service_of, lambda service, _: _generation(request, service))


async def results(request: Request) -> Response:
    """A stored result."""
    try:
        return await get_result(request, store_of(request))
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
