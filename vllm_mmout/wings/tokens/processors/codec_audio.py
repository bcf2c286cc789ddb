"""Output processor for models that generate sounds as tokens of an audio codec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.processors.option_values import checked_count
from vllm_mmout.processors.raw import describe
from vllm_mmout.wings.tokens.processors.base import marked
from vllm_mmout.wings.tokens.processors.chunked import checked_context, chunking_of, decoding
from vllm_mmout.wings.tokens.processors.media_processor import DecoderProcessor

if TYPE_CHECKING:
    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.decoders.chunks import Chunking, SoundChunks
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout


class CodecAudioProcessor(DecoderProcessor):
    """Output processor that decodes sounds of models such as Orpheus (SNAC), CSM (Mimi) and OuteTTS (DAC).

    Args:
        sampling_rate: samples per channel and second, in Hz. By default the decoder's rate.
        context: number of frames before and after a frame that affect its samples, for decoding in chunks. By default
            they are measured when the first request asks for chunks.
        prompt: see `TokenProcessor`. The places are {input}, {voice} and {instructions}.
        others: see `DecoderProcessor` and `TokenProcessor`.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str] = "codec_audio"
    modality: ClassVar[str] = "audio"
    honours: ClassVar[frozenset[str]] = frozenset({"chunk_seconds"})
    makes: ClassVar[Literal["image", "audio"]] = "audio"

    def __init__(
        self,
        *,
        layout: TokenLayout | Mapping[str, Any] | None = None,
        decoder: str | os.PathLike[str] | Any = None,
        decoder_class: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        max_batch: int = 8,
        batch_wait_ms: float = 5.0,
        sampling_rate: int | None = None,
        context: Sequence[int] | None = None,
        prompt: str | None = None,
    ) -> None:
        super().__init__(layout, decoder, decoder_class, device, dtype, threads, max_batch, batch_wait_ms, prompt)
        self._context = None if context is None else checked_context(context)
        self._chunking: Chunking | OptionError | None = None
        self._measuring = Lock()
        self.sampling_rate = None if sampling_rate is None else checked_count("sampling_rate", sampling_rate)
        """Sampling rate of the sounds, in Hz. None until it is read from the decoder."""

    def formats(self, params: OutputParams) -> Mapping[str, str]:
        """Return the file formats that sounds can be saved in, as suffix -> name of the format."""
        from vllm_mmout.outputs.audio import AudioOutput

        return AudioOutput.formats

    def decode_batch(self, media: Sequence[Medium]) -> list[AudioOutput]:
        """Decode sounds of equal length in one forward pass. Each sound has one array of codes per codebook.

        Raises:
            DecodeError: a medium has no codes, or the decoder's result is not samples [n, channels, samples] or
                [n, samples].

        """
        from vllm_mmout.outputs.audio import AudioOutput

        if any(ids.size == 0 for medium in media for ids in medium.codes):
            raise DecodeError("the sound has no codes between its markers; nothing can be decoded")
        samples = self._decoded(media)
        if samples.ndim == 2:
            samples = samples.unsqueeze(1)
        if samples.ndim != 3 or samples.shape[0] != len(media) or not samples.is_floating_point():
            raise DecodeError(
                f"the decoder must make floating-point samples [{len(media)}, channels, samples] or"
                f" [{len(media)}, samples], got {describe(samples)}"
            )
        rate: Any = self.sampling_rate  # known once the decoder is loaded
        arrays = samples.float().cpu().numpy()
        return [marked(AudioOutput(np.array(sound), rate), medium) for sound, medium in zip(arrays, media, strict=True)]

    def chunking(self) -> Chunking:
        """Return the parameters for decoding in chunks. The first call blocks, because it may run the decoder.

        Raises:
            OptionError: the decoder cannot decode in chunks.

        """
        with self._measuring:
            if self._chunking is None:
                decoder = self._loaded()
                try:
                    with decoding(self.threads):
                        self._chunking = chunking_of(decoder, self.layout, self._context)
                except OptionError as error:
                    self._chunking = error
        if isinstance(self._chunking, OptionError):
            raise self._chunking
        return self._chunking

    def begin(self, params: OutputParams) -> SoundChunks | None:
        """Return a new state for decoding a sound in chunks, or None if ``params.chunk_seconds`` is not set."""
        return None if params.chunk_seconds is None else self.chunking().begin()

    def decode(self, raw: Any, params: OutputParams, state: SoundChunks | None = None) -> Any:
        """Decode a whole sound, or its next chunk if the decoder's ``state`` from `begin` is given.

        With the state from ``begin``, ``raw`` is a `SoundPiece`. The result is then a list with its new chunk, if any.
        """
        if state is None:
            return super().decode(raw, params)
        from vllm_mmout.outputs.audio import AudioOutput

        with decoding(self.threads):
            samples = state.take(raw.medium.codes, ended=raw.ended)
        if samples is None or not samples.size:
            return []
        rate: Any = self.sampling_rate
        chunk = AudioOutput(np.array(samples), rate)
        chunk.span = (raw.medium.start, raw.medium.stop)
        return [chunk]

    def _prepare(self, decoder: TokenDecoder) -> None:
        """Read the sampling rate from the decoder if no option sets it."""
        if self.sampling_rate is None:
            self.sampling_rate = decoder.facts.sampling_rate if decoder.facts else decoder.sampling_rate
        if self.sampling_rate is None:
            raise OptionError(
                "the decoder does not say its sampling rate; set the option sampling_rate, in Hz", param="sampling_rate"
            )
