"""Route ``POST /v1/images/generations`` of a model that generates tokens: text in, pictures out, whole or as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.response.events import EventsResponse
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.wings.tokens.serving.fields import images_request
from vllm_mmout.wings.tokens.serving.generations import answer, prepared, with_accept
from vllm_mmout.wings.tokens.serving.picture_events import picture_events

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from vllm_mmout.wings.tokens.serving.service import TokenService


async def generated_images(request: Request, service: TokenService) -> Response:
    """Answer one request for pictures."""
    body = await read_json(request, service.options)
    maker = service.maker("image")
    fields = with_accept(request, images_request(body), maker)
    run = await unless_gone(request, prepared(request, service, maker, fields))
    if fields.stream:
        return EventsResponse(picture_events(service, maker, fields, run), run.request_id)
    return await unless_gone(request, answer(request, service, maker, fields, run))
