"""CodecAudioProcessor: sounds of models that write them as tokens of an audio codec."""

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
    """Sounds from the tokens of Orpheus (SNAC), CSM (Mimi), OuteTTS (DAC) and their kin.

    Args:
        sampling_rate: samples of a channel in a second, Hz; by default what the decoder says.
        context: frames before and after a frame that its samples depend on, where sounds are decoded in chunks; by
            default they are measured when the first request asks for chunks.
        prompt: as of `TokenProcessor`, with the places {input}, {voice} and {instructions}.
        others: as of `DecoderProcessor` and `TokenProcessor`.

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
        """Samples of a channel in a second, Hz; None: not known before the first sound."""

    def formats(self, params: OutputParams) -> Mapping[str, str]:
        """The formats of sounds."""
        from vllm_mmout.outputs.audio import AudioOutput

        return AudioOutput.formats

    def decode_batch(self, media: Sequence[Medium]) -> list[AudioOutput]:
        """Make sounds of codes [n_k], one array a codebook, in one forward; see `TokenProcessor.decode_batch`.

        Raises:
            DecodeError: a medium has no codes, or the decoder made something else than samples [n, channels, samples]
                or [n, samples].

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
        rate: Any = self.sampling_rate  # known once the decoder is there
        arrays = samples.float().cpu().numpy()
        return [marked(AudioOutput(np.array(sound), rate), medium) for sound, medium in zip(arrays, media, strict=True)]

    def chunking(self) -> Chunking:
        """How sounds are decoded in chunks; the first call may run the decoder some times, so it blocks.

        Raises:
            OptionError: the decoder makes no sounds in chunks.

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
        """What a sound that is decoded in chunks remembers."""
        return None if params.chunk_seconds is None else self.chunking().begin()

    def decode(self, raw: Any, params: OutputParams, state: SoundChunks | None = None) -> Any:
        """Make the sound of one medium; with the state of ``begin``, of a `SoundPiece`, a list of what of it is new."""
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
        """Take the rate from the decoder where no option says it."""
        if self.sampling_rate is None:
            self.sampling_rate = decoder.facts.sampling_rate if decoder.facts else decoder.sampling_rate
        if self.sampling_rate is None:
            raise OptionError(
                "the decoder does not say its sampling rate; set the option sampling_rate, in Hz", param="sampling_rate"
            )
