"""Speech that comes while it is made: the bytes of a file piece by piece, or OpenAI's events."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from vllm.sampling_params import RequestOutputKind

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.outputs.formats.sound_stream import SoundStream
from vllm_mmout.serving.errors import api_error
from vllm_mmout.serving.response.events import Event, EventsResponse
from vllm_mmout.serving.response.responses import CutOff
from vllm_mmout.serving.response.result_files import SOUND_TYPES
from vllm_mmout.wings.tokens.processors.codec_audio import CodecAudioProcessor
from vllm_mmout.wings.tokens.serving.generations import ended_without
from vllm_mmout.wings.tokens.serving.speech import encoded, joined

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Send
    from vllm.outputs import RequestOutput

    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.wings.tokens.serving.fields import SpeechRequest
    from vllm_mmout.wings.tokens.serving.generations import Run
    from vllm_mmout.wings.tokens.serving.service import Maker, TokenService

USUAL_S: Final = 0.5
"""Seconds of a chunk, where a client does not say it."""


async def streamed(service: TokenService, maker: Maker, asked: SpeechRequest, run: Run) -> Response:
    """The answer to a request whose sound comes while it is made; headers go out with the first of it."""
    seconds = await asyncio.to_thread(chunk_seconds, maker, asked.chunk_seconds)
    run.params.sampling.output_kind = RequestOutputKind.DELTA
    chunked = replace(run, params=msgspec.structs.replace(run.params, chunk_seconds=seconds))
    spoken = Spoken(service.running(chunked), asked.response_format, len(run.prompt))
    if asked.stream_format == "sse":
        return EventsResponse(_events(spoken), run.request_id)
    response = SoundResponse(_bytes(spoken), run.request_id, media_type=SOUND_TYPES[asked.response_format])
    spoken.response = response
    return response


def chunk_seconds(maker: Maker, asked: float | None) -> float | None:
    """Of the engine's chunks; None where the decoder makes none, and the client has not asked for any. Blocks."""
    if isinstance(maker.processor, CodecAudioProcessor):
        try:
            maker.processor.chunking()
        except OptionError as error:
            if asked is not None:
                raise api_error(error) from error
            return None
        return asked or USUAL_S
    if asked is not None:
        message = f"{type(maker.processor).__name__} makes no sounds in chunks; leave chunk_seconds out"
        raise api_error(OptionError(message, param="chunk_seconds"))
    return None


@dataclass(slots=True)
class Spoken:
    """One answer on its way to its client."""

    outputs: AsyncGenerator[RequestOutput, None]
    format: str
    prompt: int
    """Tokens of the prompt."""
    response: Response | None = None
    """Whose headers are not sent before the first sound."""
    tokens: int = 0
    """Tokens of the answer so far."""
    reasons: set[str] = field(default_factory=set)
    partial: bool = False
    _file: SoundStream | None = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the file; raises an `ApiError` where there is no sound."""
        async with aclosing(self._sounds()) as sounds:
            async for sound in sounds:
                if piece := await asyncio.to_thread(self._written, sound):
                    yield piece
        if self._file is None:
            raise ended_without("sound", self.reasons, self.tokens)
        if piece := await asyncio.to_thread(self._file.close):
            yield piece

    @property
    def usage(self) -> dict[str, int]:
        """What the request took, as OpenAI counts it."""
        total = self.prompt + self.tokens
        return {"input_tokens": self.prompt, "output_tokens": self.tokens, "total_tokens": total}

    async def _sounds(self) -> AsyncGenerator[AudioOutput, None]:
        """What comes of the sounds; where no chunks come, all of them at the end."""
        none = True
        async with aclosing(self.outputs) as outputs:
            async for output in outputs:
                answer: Any = output.outputs[0]
                self.tokens += len(answer.token_ids)
                for chunk in answer.updates:
                    none = False
                    yield chunk
        self.reasons = {str(answer.finish_reason)}
        self.partial = any(getattr(sound, "partial", False) for sound in answer.multimodal)
        if none and answer.multimodal:
            yield joined(answer.multimodal)

    def _written(self, sound: AudioOutput) -> bytes:
        if self._file is None:
            try:
                self._file = SoundStream(self.format, sound.rate, sound.channels)
            except SaveError:
                encoded(sound, self.format)  # says what could be asked for instead
                raise
            if self.response is not None and self.format == "pcm":  # it has no header
                self.response.headers["Content-Type"] = encoded(sound, self.format).media_type
        return self._file.write(sound.samples)


async def _bytes(spoken: Spoken) -> AsyncGenerator[Event, None]:
    async with aclosing(spoken.pieces()) as pieces:
        async for piece in pieces:
            yield Event((piece,))


async def _events(spoken: Spoken) -> AsyncGenerator[Event, None]:
    """See https://platform.openai.com/docs/api-reference/audio/speech-audio-delta-event."""
    async with aclosing(spoken.pieces()) as pieces:
        async for piece in pieces:
            yield _event("speech.audio.delta", audio=b64encode(piece).decode())
    cut = {"partial": True} if spoken.partial else {}
    yield _event("speech.audio.done", usage=spoken.usage, **cut)


def _event(name: str, **fields: Any) -> Event:
    body = json.dumps({"type": name, **fields}, separators=(",", ":")).encode()
    return Event((b"event: " + name.encode() + b"\ndata: " + body + b"\n\n",))


class SoundResponse(EventsResponse):
    """The bytes of a sound; one that fails after its first bytes is cut off, so that its client sees it."""

    async def send_failure(self, send: Send, failure: Exception) -> None:
        """End the connection."""
        raise CutOff(f"a sound failed after its first bytes, and its connection was ended: {failure}")
