"""``POST /v1/audio/speech`` of a model that generates tokens: a text in, a sound out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.serving.admission import answered, token_service_of
from vllm_mmout.serving.body import read_json
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.gone import unless_gone
from vllm_mmout.serving.responses import bare_response
from vllm_mmout.serving.service import request_id
from vllm_mmout.serving.tokens.fields import speech_request
from vllm_mmout.serving.tokens.generations import PARTIAL
from vllm_mmout.serving.tokens.sampling import sampling_params
from vllm_mmout.serving.tokens.service import nothing_made
from vllm_mmout.serving.tokens.sounds import check_format, encoded, joined

if TYPE_CHECKING:
    from vllm_mmout.processors.prompt_template import PromptTemplate
    from vllm_mmout.serving.tokens.fields import SpeechRequest
    from vllm_mmout.serving.tokens.service import Maker, TokenService


async def speech(request: Request) -> Response:
    """A text in, the model's sound out."""
    return await answered(request, token_service_of, lambda service, _: _spoken(request, service))


async def _spoken(request: Request, service: TokenService) -> Response:
    body = await read_json(request, service.options)
    maker = service.maker("audio")
    asked = speech_request(body)
    return await unless_gone(request, _answer(request, service, maker, asked))


async def _answer(request: Request, service: TokenService, maker: Maker, asked: SpeechRequest) -> Response:
    adapter = service.adapter(asked.model)
    values = _values(asked, maker.template)
    await asyncio.to_thread(check_format, asked.response_format, getattr(maker.processor, "sampling_rate", None))
    prompt = await asyncio.to_thread(maker.tokens, values, "input")
    left = service.room_after(prompt, "input")
    sampling = sampling_params(asked.sampling, service.usual, n=1, length=service.usual.get("max_tokens"), left=left)
    name = request_id(request, "speech")
    outputs = await service.generated(maker, prompt, sampling, name, adapter)
    sounds = [sound for answer in outputs.outputs for sound in answer.multimodal]  # type: ignore[attr-defined]
    if not sounds:
        raise nothing_made("sound", outputs)
    try:
        whole = joined(sounds)
        entry = await asyncio.to_thread(encoded, whole, asked.response_format)
    except Exception as error:
        raise api_error(error, name) from error
    return bare_response(entry, {PARTIAL: "true"} if whole.partial else None, name="speech")


def _values(asked: SpeechRequest, template: PromptTemplate) -> dict[str, str]:
    """What goes in for the places of the template.

    Raises:
        ApiError: instructions have no place there, or its voice has no name (400).

    """
    values = {"input": asked.input}
    if asked.instructions is not None:
        if "instructions" not in template.names:
            raise ApiError(
                400,
                "instructions have no place in this model's prompt; leave them out, or have the server's template"
                ' ("prompt" in its "mmout" table) hold {instructions}',
                param="instructions",
            )
        values["instructions"] = asked.instructions
    if asked.voice is not None:  # clients have to send one; of a model with one voice it changes nothing
        values["voice"] = asked.voice
    elif "voice" in template.names and template.default("voice") is None:
        raise ApiError(400, "voice is missing; send the name of one that the model was trained with", param="voice")
    return values
