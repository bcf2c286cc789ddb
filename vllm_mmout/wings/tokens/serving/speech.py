"""Answer requests for speech with one whole sound file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import DecodeError, SaveError
from vllm_mmout.outputs.audio import AudioOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, client_errors
from vllm_mmout.serving.request.fields import ImageRequest
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.responses import bare_response
from vllm_mmout.serving.response.result_files import SOUND_TYPES, Encoded
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving.fields import RESPONSE_FORMATS, SpeechRequest, sampling_params
from vllm_mmout.wings.tokens.serving.generations import PARTIAL, nothing_made
from vllm_mmout.wings.tokens.serving.service import GenerateArguments, Maker, TokenService

FIELD: Final = "response_format"
"""Request field that chooses the file format of the sound. Error messages name it."""


async def answer_of_forward(request: Request, service: ForwardService, fields: SpeechRequest) -> Response:
    """Answer a speech request with a model that computes the sound in one forward pass."""
    inputs = service.binding.inputs
    name, image_fields = request_id(request, "speech"), ImageRequest(model=fields.model)
    service.adapter(fields.model)  # an unknown model is the first error
    processor = service.binding.processors[service.binding.choice.pick(None)[0]]
    if processor.modality != "audio" or (inputs is not None and inputs.opens_files):
        raise ApiError(400, service.gives, param="model")
    unsupported_fields = [
        *fields.sampling,
        *(name for name in ("instructions", "chunk_seconds", "output") if getattr(fields, name) is not None),
    ]
    if unsupported_fields:
        raise ApiError(
            400, f"the model takes only a text; leave {unsupported_fields[0]} out", param=unsupported_fields[0]
        )
    if fields.stream_format == "sse":
        raise ApiError(
            400, "the model makes a sound at once, not as events; leave stream_format out", param="stream_format"
        )
    await asyncio.to_thread(check_format, fields.response_format, getattr(processor, "sampling_rate", None))
    work = Work.of(service, image_fields, fields.input, name, "input", trace_headers=trace_headers(request))
    last = await work.last()
    with client_errors(name):
        entry = await _encoded_in_thread(joined([last.outputs]), fields, work.new_budget())
    return bare_response(entry, name="speech")


async def prepared(request: Request, service: TokenService, maker: Maker, fields: SpeechRequest) -> GenerateArguments:
    """Return the engine's arguments for a speech request. Raise an ApiError if a field has a wrong value."""
    adapter = service.adapter(fields.model)
    values = _values(fields, maker.template)
    await asyncio.to_thread(check_format, fields.response_format, getattr(maker.processor, "sampling_rate", None))
    prompt = await asyncio.to_thread(maker.tokens, values, "input")
    room = service.room_after(prompt, "input")
    sampling = sampling_params(fields.sampling, service.usual, n=1, length=service.usual.get("max_tokens"), left=room)
    params = OutputParams(processor=maker.name, sampling=sampling, output=fields.output)
    return GenerateArguments(prompt, params, request_id(request, "speech"), adapter, trace_headers(request))


async def answer(service: TokenService, fields: SpeechRequest, run: GenerateArguments) -> Response:
    """Generate speech with the arguments ``run``, and return the whole sound in one response."""
    outputs = await service.generated(run)
    sounds = [sound for answer in outputs.outputs for sound in answer.multimodal]  # type: ignore[attr-defined]
    if not sounds:
        raise nothing_made("sound", outputs)
    with client_errors(run.request_id):
        whole = joined(sounds)
        entry = await _encoded_in_thread(whole, fields, AnswerBudget(service.options.max_answer))
    return bare_response(entry, {PARTIAL: "true"} if whole.partial else None, name="speech")


async def _encoded_in_thread(sound: AudioOutput, fields: SpeechRequest, budget: AnswerBudget) -> Encoded:
    return await in_thread(partial(encoded, sound, fields.response_format, FIELD, budget), stop=budget.abandon)


def _values(fields: SpeechRequest, template: PromptTemplate) -> dict[str, str]:
    """Return the values for the placeholders of the prompt template, from the fields of a speech request."""
    values = {"input": fields.input}
    if fields.instructions is not None:
        if "instructions" not in template.names:
            raise ApiError(
                400,
                "instructions have no place in this model's prompt; leave them out, or add {instructions} to the"
                ' server\'s template ("prompt" in its "mmout" table)',
                param="instructions",
            )
        values["instructions"] = fields.instructions
    if fields.voice is not None:  # OpenAI's clients always send a voice, and a model with one voice ignores it
        values["voice"] = fields.voice
    elif "voice" in template.names and template.default("voice") is None:
        raise ApiError(400, "voice is missing; send the name of one that the model was trained with", param="voice")
    return values


def joined(sounds: Sequence[Any]) -> AudioOutput:
    """Join the sounds of one answer end to end. Raise a DecodeError if their rates or channels differ."""
    wrong_types = {type(sound).__name__ for sound in sounds if not isinstance(sound, AudioOutput)}
    if wrong_types:
        raise DecodeError(f"the processor returns {', '.join(sorted(wrong_types))}, but speech must be AudioOutput")
    if len(sounds) == 1:
        return sounds[0]  # type: ignore[no-any-return]
    forms = {(sound.rate, sound.channels) for sound in sounds}
    if len(forms) > 1:
        forms_text = ", ".join(f"{rate} Hz with {channels} channels" for rate, channels in sorted(forms))
        raise DecodeError(f"the sounds of one answer have {forms_text}, so they cannot be joined")
    whole = AudioOutput(np.concatenate([sound.samples for sound in sounds], axis=1), sounds[0].rate)
    whole.partial = any(sound.partial for sound in sounds)
    return whole


def encoded(sound: AudioOutput, name: str, field: str = FIELD, budget: AnswerBudget | None = None) -> Encoded:
    """Encode a sound to the file format ``name``. Errors name the request field ``field``.

    The call blocks while the sound is encoded.
    """
    (budget or AnswerBudget()).check(sound.nbytes, repr(sound))
    try:
        content = sound.to_bytes(name)
    except SaveError as error:
        raise _refused(error, sound.rate, sound.channels, field) from error
    form = f"; rate={sound.rate}; channels={sound.channels}" if name == "pcm" else ""  # pcm lacks a header
    return Encoded(content, name, media_type=f"{SOUND_TYPES[name]}{form}")


def check_format(name: str, rate: int | None, field: str = FIELD) -> None:
    """Raise an ApiError, before the model runs, if the file format ``name`` cannot hold sounds of ``rate`` Hz.

    Blocks while it encodes a short silence. Errors name the request field ``field``. If ``rate`` is None, nothing is
    checked.
    """
    if rate is not None:
        encoded(_silence(rate), name, field)


def _refused(error: SaveError, rate: int, channels: int, field: str) -> ApiError:
    fact = str(error).partition("; ")[0]
    formats = ", ".join(name for name in RESPONSE_FORMATS if _holds(name, rate, channels))
    return ApiError(400, f"{fact}; choose another {field}: {formats}", param=field)


def _holds(name: str, rate: int, channels: int) -> bool:
    try:
        _silence(rate, channels).to_bytes(name)
    except SaveError:
        return False
    return True


def _silence(rate: int, channels: int = 1) -> AudioOutput:
    return AudioOutput(np.zeros((channels, 1), np.float32), rate)
