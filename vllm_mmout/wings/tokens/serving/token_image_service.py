"""Serve pictures that a model generates from a text as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.response.events import EventsResponse
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.wings.tokens.serving.fields import images_request
from vllm_mmout.wings.tokens.serving.generations import answer, prepared, with_accept
from vllm_mmout.wings.tokens.serving.picture_events import picture_events
from vllm_mmout.wings.tokens.serving.service import TokenService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class TokenImageService(TokenService):
    """Service of a server whose model generates pictures as tokens. It adds the route ``/v1/images/generations``."""

    __slots__ = ()

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``, which generates pictures from a text."""
        body = await read_json(request, self.options)
        maker = self.maker("image")
        fields = with_accept(request, images_request(body), maker)
        run = await unless_gone(request, prepared(request, self, maker, fields))
        if fields.stream:
            return EventsResponse(picture_events(self, maker, fields, run), run.request_id)
        return await unless_gone(request, answer(request, self, maker, fields, run))
