"""Define the route ``POST /v1/audio/speech``, which returns generated speech as a whole or as a stream."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import answered
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.serving.service import ForwardService, Service
from vllm_mmout.wings.tokens.serving.fields import speech_request
from vllm_mmout.wings.tokens.serving.service import TokenService
from vllm_mmout.wings.tokens.serving.speech import answer, answer_of_forward, prepared
from vllm_mmout.wings.tokens.serving.speech_stream import streamed


async def speech(request: Request) -> Response:
    """Answer a request to ``/v1/audio/speech``."""
    return await answered(request, Service, lambda service, _: _spoken(request, service))


async def _spoken(request: Request, service: Service) -> Response:
    body = await read_json(request, service.options)
    if isinstance(service, ForwardService):
        return await unless_gone(request, answer_of_forward(request, service, speech_request(body)))
    if not isinstance(service, TokenService):
        raise ApiError(400, service.gives, param="model")
    maker = service.maker("audio")
    fields = speech_request(body)
    run = await unless_gone(request, prepared(request, service, maker, fields))
    if fields.stream_format is not None or fields.chunk_seconds is not None:
        return await unless_gone(request, streamed(service, maker, fields, run))
    return await unless_gone(request, answer(service, fields, run))
