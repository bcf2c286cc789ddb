"""Speech that comes whole: a text in, a sound out, of a model that generates tokens or answers in one forward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import DecodeError, SaveError
from vllm_mmout.outputs.audio import AudioOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.request.names import request_id, trace_headers
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import FormatChoice
from vllm_mmout.serving.response.responses import bare_response
from vllm_mmout.serving.response.result_files import SOUND_TYPES, Encoded
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving.fields import RESPONSE_FORMATS, SpeechRequest, sampling_params
from vllm_mmout.wings.tokens.serving.generations import PARTIAL, Run, nothing_made
from vllm_mmout.wings.tokens.serving.service import Maker, TokenService

FIELD: Final = "response_format"
"""Of the format of a sound."""


async def answer_of_forward(request: Request, service: ForwardService, asked: SpeechRequest) -> Response:
    """The sound of a model that answers in one forward."""
    inputs = service.binding.inputs
    name, adapter, headers = request_id(request, "speech"), service.adapter(asked.model), trace_headers(request)
    work = Work(service, asked.input, OutputParams(), FormatChoice(), name, adapter, "input", trace_headers=headers)
    processor = service.binding.processors[work.names[0]]
    if processor.modality != "audio" or (inputs is not None and inputs.opens_files):
        raise ApiError(400, service.gives, param="model")
    given = [
        *asked.sampling,
        *(name for name in ("instructions", "chunk_seconds", "output") if getattr(asked, name) is not None),
    ]
    if given:
        raise ApiError(400, f"the model takes a text alone; leave {given[0]} out", param=given[0])
    if asked.stream_format == "sse":
        raise ApiError(400, "the model gives a sound at once, as no events; leave it out", param="stream_format")
    await asyncio.to_thread(check_format, asked.response_format, getattr(processor, "sampling_rate", None))
    async with aclosing(work.running()) as outputs:
        async for output in outputs:
            last = output
    try:
        entry = await _answered(joined([last.outputs]), asked, work.new_budget())
    except Exception as error:
        raise api_error(error, name) from error
    return bare_response(entry, name="speech")


async def prepared(request: Request, service: TokenService, maker: Maker, asked: SpeechRequest) -> Run:
    """What the engine is to do for a request."""
    adapter = service.adapter(asked.model)
    values = _values(asked, maker.template)
    await asyncio.to_thread(check_format, asked.response_format, getattr(maker.processor, "sampling_rate", None))
    prompt = await asyncio.to_thread(maker.tokens, values, "input")
    left = service.room_after(prompt, "input")
    sampling = sampling_params(asked.sampling, service.usual, n=1, length=service.usual.get("max_tokens"), left=left)
    params = OutputParams(processor=maker.name, sampling=sampling, output=asked.output)
    return Run(prompt, params, request_id(request, "speech"), adapter, trace_headers(request))


async def answer(service: TokenService, asked: SpeechRequest, run: Run) -> Response:
    """The sound of a model that generates tokens, whole."""
    outputs = await service.generated(run)
    sounds = [sound for answer in outputs.outputs for sound in answer.multimodal]  # type: ignore[attr-defined]
    if not sounds:
        raise nothing_made("sound", outputs)
    try:
        whole = joined(sounds)
        entry = await _answered(whole, asked, AnswerBudget(service.options.max_answer))
    except Exception as error:
        raise api_error(error, run.request_id) from error
    return bare_response(entry, {PARTIAL: "true"} if whole.partial else None, name="speech")


async def _answered(sound: AudioOutput, asked: SpeechRequest, budget: AnswerBudget) -> Encoded:
    """Return the bytes of a sound in the format that was asked for, made off the event loop."""
    return await in_thread(partial(encoded, sound, asked.response_format, FIELD, budget), stop=budget.abandon)


def _values(asked: SpeechRequest, template: PromptTemplate) -> dict[str, str]:
    """What goes in for the places of the template."""
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


def joined(sounds: Sequence[Any]) -> AudioOutput:
    """One sound of those of one answer, one after the other."""
    kinds = {type(sound).__name__ for sound in sounds if not isinstance(sound, AudioOutput)}
    if kinds:
        raise DecodeError(f"the processor returns {', '.join(sorted(kinds))}, and speech is of AudioOutput")
    if len(sounds) == 1:
        return sounds[0]  # type: ignore[no-any-return]
    forms = {(sound.rate, sound.channels) for sound in sounds}
    if len(forms) > 1:
        said = ", ".join(f"{rate} Hz with {channels} channels" for rate, channels in sorted(forms))
        raise DecodeError(f"the sounds of one answer are of {said}, and cannot be one")
    whole = AudioOutput(np.concatenate([sound.samples for sound in sounds], axis=1), sounds[0].rate)
    whole.partial = any(sound.partial for sound in sounds)
    return whole


def encoded(sound: AudioOutput, name: str, field: str = FIELD, budget: AnswerBudget | None = None) -> Encoded:
    """Return the bytes of a sound file in one of `RESPONSE_FORMATS`; blocks.

    Errors name the field that the format came in.
    """
    (budget or AnswerBudget()).check(sound.nbytes, repr(sound))
    try:
        content = sound.to_bytes(name)
    except SaveError as error:
        raise _refused(error, sound.rate, sound.channels, field) from error
    form = f"; rate={sound.rate}; channels={sound.channels}" if name == "pcm" else ""  # it has no header
    return Encoded(content, name, media_type=f"{SOUND_TYPES[name]}{form}")


def check_format(name: str, rate: int | None, field: str = FIELD) -> None:
    """Refuse a format before the model runs that its sounds, of a known rate, cannot have; blocks.

    Errors name the field that the format came in.
    """
    if rate is not None:
        encoded(_silence(rate), name, field)


def _refused(error: SaveError, rate: int, channels: int, field: str) -> ApiError:
    fact = str(error).partition("; ")[0]
    can = ", ".join(name for name in RESPONSE_FORMATS if _holds(name, rate, channels))
    return ApiError(400, f"{fact}; choose another {field}: {can}", param=field)


def _holds(name: str, rate: int, channels: int) -> bool:
    try:
        _silence(rate, channels).to_bytes(name)
    except SaveError:
        return False
    return True


def _silence(rate: int, channels: int = 1) -> AudioOutput:
    return AudioOutput(np.zeros((channels, 1), np.float32), rate)
