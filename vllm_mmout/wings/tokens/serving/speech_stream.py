"""Send speech while it is generated, as the bytes of a sound file or as OpenAI's events."""

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
    from vllm_mmout.wings.tokens.serving.service import GenerateArguments, Maker, TokenService

USUAL_S: Final = 0.5
"""Default length of a chunk of sound, in seconds."""


async def streamed(service: TokenService, maker: Maker, fields: SpeechRequest, run: GenerateArguments) -> Response:
    """Return a response that sends the speech while the model generates it.

    The headers are sent with the first piece of the sound.
    """
    seconds = await asyncio.to_thread(chunk_seconds, maker, fields.chunk_seconds)
    run.params.sampling.output_kind = RequestOutputKind.DELTA
    chunked = replace(run, params=msgspec.structs.replace(run.params, chunk_seconds=seconds))
    spoken = SpokenAnswer(service.running(chunked), fields.response_format, len(run.prompt))
    if fields.stream_format == "sse":
        return EventsResponse(_events(spoken), run.request_id)
    response = SoundResponse(_bytes(spoken), run.request_id, media_type=SOUND_TYPES[fields.response_format])
    spoken.response = response
    return response


def chunk_seconds(maker: Maker, seconds: float | None) -> float | None:
    """Return the length of a sound's chunks in seconds: the client's ``seconds``, or the default.

    Return None if the decoder cannot decode in chunks and the client did not ask for chunks. The first call blocks
    while the decoder is measured.
    """
    if isinstance(maker.processor, CodecAudioProcessor):
        try:
            maker.processor.chunking()
        except OptionError as error:
            if seconds is not None:
                raise api_error(error) from error
            return None
        return seconds or USUAL_S
    if seconds is not None:
        message = f"{type(maker.processor).__name__} cannot decode sounds in chunks; leave chunk_seconds out"
        raise api_error(OptionError(message, param="chunk_seconds"))
    return None


@dataclass(slots=True)
class SpokenAnswer:
    """Generated speech that is sent to its client while the model generates it."""

    outputs: AsyncGenerator[RequestOutput, None]
    format: str
    prompt: int
    """Number of tokens in the prompt."""
    response: Response | None = None
    """Response to the client. For raw samples, its content type is set when the first sound has been decoded."""
    tokens: int = 0
    """Number of tokens of the answer so far."""
    reasons: set[str] = field(default_factory=set)
    partial: bool = False
    _file: SoundStream | None = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the sound file while it is generated. Raise an `ApiError` for an answer without sound."""
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
        """Return the token counts of the request in OpenAI's ``usage`` format."""
        total = self.prompt + self.tokens
        return {"input_tokens": self.prompt, "output_tokens": self.tokens, "total_tokens": total}

    async def _sounds(self) -> AsyncGenerator[AudioOutput, None]:
        """Yield the decoded chunks of the speech, or the whole sound at the end if chunks are not possible."""
        has_no_chunks = True
        async with aclosing(self.outputs) as outputs:
            async for output in outputs:
                answer: Any = output.outputs[0]
                self.tokens += len(answer.token_ids)
                for chunk in answer.updates:
                    has_no_chunks = False
                    yield chunk
        self.reasons = {str(answer.finish_reason)}
        self.partial = any(getattr(sound, "partial", False) for sound in answer.multimodal)
        if has_no_chunks and answer.multimodal:
            yield joined(answer.multimodal)

    def _written(self, sound: AudioOutput) -> bytes:
        if self._file is None:
            try:
                self._file = SoundStream(self.format, sound.rate, sound.channels)
            except SaveError:
                encoded(sound, self.format)  # raises an error that names possible formats
                raise
            if self.response is not None and self.format == "pcm":  # no header, so the media type gives the rate
                self.response.headers["Content-Type"] = encoded(sound, self.format).media_type
        return self._file.write(sound.samples)


async def _bytes(spoken: SpokenAnswer) -> AsyncGenerator[Event, None]:
    async with aclosing(spoken.pieces()) as pieces:
        async for piece in pieces:
            yield Event((piece,))


async def _events(spoken: SpokenAnswer) -> AsyncGenerator[Event, None]:
    """Yield speech as OpenAI's server-sent events: pieces of the sound file in base64, then the token counts.

    The events are described at https://platform.openai.com/docs/api-reference/audio/speech-audio-delta-event.
    """
    async with aclosing(spoken.pieces()) as pieces:
        async for piece in pieces:
            yield _event("speech.audio.delta", audio=b64encode(piece).decode())
    cut = {"partial": True} if spoken.partial else {}
    yield _event("speech.audio.done", usage=spoken.usage, **cut)


def _event(name: str, **fields: Any) -> Event:
    body = json.dumps({"type": name, **fields}, separators=(",", ":")).encode()
    return Event((b"event: " + name.encode() + b"\ndata: " + body + b"\n\n",))


class SoundResponse(EventsResponse):
    """Response that streams the bytes of a sound file. A failure after the first bytes cuts the connection."""

    async def send_failure(self, send: Send, failure: Exception) -> None:
        """Raise an exception that cuts the connection, so that the client notices that the sound is incomplete."""
        raise CutOff(f"a sound failed after its first bytes, and its connection was ended: {failure}")
