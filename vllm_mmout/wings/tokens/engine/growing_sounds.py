"""Decode a sound in chunks while the model is still generating its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs.audio import AudioOutput
from vllm_mmout.wings.tokens.processors.chunked import SoundPiece

if TYPE_CHECKING:
    from vllm_mmout.engine.decode_pool import Outcome
    from vllm_mmout.params import OutputParams
    from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher, MediaJob
    from vllm_mmout.wings.tokens.layouts import Medium
    from vllm_mmout.wings.tokens.layouts.parser import StreamParser
    from vllm_mmout.wings.tokens.processors.codec_audio import CodecAudioProcessor


_MAX_CHUNKS = 8
"""Maximum number of chunks of a sound in one forward pass of the decoder.

Chunks that the model generates while the decoder is busy are decoded together."""


class GrowingSounds:
    """Sounds in a model's answer to one request, each decoded in chunks while the model generates it.

    ``settled`` is called in any thread when a whole sound has been decoded.
    """

    def __init__(
        self, processor: CodecAudioProcessor, params: OutputParams, batcher: MediaBatcher, settled: Callable[[], None]
    ) -> None:
        self.settled = settled
        self.error: Exception | None = None
        """Exception of a chunk that could not be decoded, or None."""
        self._processor = processor
        self._params = params
        self._batcher = batcher
        self._open: GrowingSound | None = None
        self._sounds: list[GrowingSound] = []
        """Sounds in the order of their tokens. `take` removes a sound after it has returned its last chunk."""
        self._chunks: dict[int, list[AudioOutput]] = {}
        """Decoded chunks that `take` has not returned yet, as a list for each sound. The key is the index of the
        sound's first token."""
        self._lock = Lock()

    def advance(self, parser: StreamParser) -> None:
        """Submit the next chunk of the sound in ``parser`` if the model has generated enough frames.

        An error is stored in the attribute ``error`` instead of being raised. Later calls then do nothing.
        """
        if (begun := parser.begun) is None or self.error is not None:
            return
        start, frames = begun
        try:
            sound = self._sound(start)
            if sound.is_chunk_due(frames):
                sound.offer(parser.so_far(), frames)
        except Exception as error:  # noqa: BLE001 - no error may escape from process_outputs
            self.error = error

    def end(self, medium: Medium) -> GrowingSound:
        """Submit the remaining codes of a finished sound for decoding."""
        sound = self._sound(medium.start)
        self._open = None
        sound.end(medium)
        return sound

    def take(self) -> list[AudioOutput]:
        """Return the chunks decoded since the last call. Chunks of a sound are held back until earlier sounds end."""
        chunks: list[AudioOutput] = []
        with self._lock:
            while self._sounds:
                first = self._sounds[0]
                is_unfinished = (
                    first.done is not None
                )  # read before the chunks, as a sound ends after its last chunk is kept
                chunks += self._chunks.pop(first.start, [])
                if is_unfinished:
                    break
                self._sounds.pop(0)
        return chunks

    def keep(self, sound: GrowingSound, chunks: list[AudioOutput]) -> None:
        """Store decoded chunks of a sound until `take` returns them."""
        with self._lock:
            self._chunks.setdefault(sound.start, []).extend(chunks)

    def cancel(self) -> None:
        """Stop decoding the unfinished sound."""
        if self._open is not None:
            self._open.cancel()
            self._open = None

    def _sound(self, start: int) -> GrowingSound:
        if self._open is None or self._open.start != start:
            self.cancel()
            self._open = GrowingSound(start, self._processor, self._params, self._batcher, self)
            with self._lock:
                self._sounds.append(self._open)
        return self._open


class GrowingSound:
    """Sound that is decoded in chunks while the model is still generating its tokens.

    It can take the place of a `MediaJob` in `MediaStream.jobs`, because it has the members that are used there.

    Only one piece is decoded at a time. The next piece has all frames that came in the meantime, so chunks become
    longer if the decoder is slower than the model. Their length is limited, because a forward pass has a time limit.
    """

    def __init__(
        self,
        start: int,
        processor: CodecAudioProcessor,
        params: OutputParams,
        batcher: MediaBatcher,
        sounds: GrowingSounds,
    ) -> None:
        chunking = processor.chunking()
        rate: Any = processor.sampling_rate
        seconds: Any = params.chunk_seconds
        self.start = start
        self.medium: Medium | None = None
        """`Medium` with the codes of the whole sound. None until the model has ended the sound."""
        self.outcome: Outcome = None
        self.done: Callable[[], None] | None = sounds.settled
        """Callback for the end of decoding. None once it was called or the sound was cancelled."""
        self._frames_a_chunk = max(1, -(-round(seconds * rate) // chunking.frame_samples))
        self._first, self._ahead, self._rates = chunking.first, chunking.ahead, chunking.rates
        self._state = chunking.begin()
        self._params = params
        self._batcher = batcher
        self._sounds = sounds
        self._frames_sent = 0
        """Number of frames of the sound that are decoded or being decoded."""
        self._chunks: list[AudioOutput] = []
        self._job: MediaJob | None = None
        self._busy = False
        """Whether a chunk of this sound is being decoded."""
        self._lock = Lock()

    def is_chunk_due(self, frames: int) -> bool:
        """Return whether the next chunk can be decoded now that the model has generated ``frames`` frames."""
        return not self._busy and frames >= max(self._frames_sent + self._frames_a_chunk + self._ahead, self._first)

    def offer(self, medium: Medium, frames: int) -> None:
        """Submit the next chunk unless one is being decoded. ``frames`` counts the frames generated so far."""
        with self._lock:
            if self._busy or self.done is None:
                return
            self._busy = True
        self._decode(self._next_piece(medium, frames, ended=False))

    def end(self, medium: Medium) -> None:
        """Submit the last chunk, which has the remaining codes of ``medium``. A chunk in progress is finished first."""
        with self._lock:
            self.medium = medium
            if self._busy or self.done is None:
                return
            self._busy = True
        self._decode(self._rest(medium))

    def cancel(self) -> None:
        """Stop decoding the sound, without calling ``done``."""
        self.done = None
        if self._job is not None:
            self._job.cancel()

    def _rest(self, medium: Medium) -> SoundPiece:
        return self._next_piece(medium, medium.codes[0].size // self._rates[0], ended=True)

    def _next_piece(self, medium: Medium, frames: int, *, ended: bool) -> SoundPiece:
        """Return the next piece to decode, which holds all codes of the sound up to the end of the next chunk.

        Codes that would exceed `_MAX_CHUNKS` chunks are left for later pieces.
        """
        most = max(self._frames_sent + self._ahead + _MAX_CHUNKS * self._frames_a_chunk, self._first)
        if frames > most:
            codes = tuple(ids[: most * rate] for ids, rate in zip(medium.codes, self._rates, strict=True))
            medium, frames, ended = replace(medium, codes=codes), most, False
        self._frames_sent = frames if ended else frames - self._ahead
        return SoundPiece(medium, ended)

    def _decode(self, piece: SoundPiece) -> None:
        self._job = self._batcher.submit(piece, self._params, self._on_decoded, self._state)

    def _on_decoded(self, job: MediaJob) -> None:
        """Store a decoded chunk, and submit the remaining codes of a sound that has ended. Called in any thread."""
        try:
            self._go_on(job)
        except Exception as error:  # noqa: BLE001 - the answer waits for an outcome
            self._settle(error)

    def _go_on(self, job: MediaJob) -> None:
        if isinstance(job.outcome, BaseException):
            self._settle(job.outcome)
            return
        self._chunks += job.outcome
        self._sounds.keep(self, job.outcome)
        if job.medium.ended:
            self._settle(self._whole())
            return
        with self._lock:
            rest = self.medium if self.done is not None else None
            self._busy = rest is not None
        if rest is not None:
            self._decode(self._rest(rest))

    def _whole(self) -> AudioOutput:
        if not self._chunks:
            raise DecodeError(
                "the decoder made no samples for the sound; name the decoder that the model was trained with"
            )
        return AudioOutput(np.concatenate([chunk.samples for chunk in self._chunks], axis=1), self._chunks[0].rate)

    def _settle(self, outcome: Outcome) -> None:
        """Record the whole sound, or the exception that ended its decoding, and call the callback ``done``."""
        done = self.done
        if done is None:
            return
        if isinstance(outcome, Exception):
            self._sounds.error = outcome
        self.outcome = outcome
        self.done = None  # set last: readers check done before they read outcome
        done()
