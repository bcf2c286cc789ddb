"""CodecAudioProcessor: sounds of models that write them as tokens of an audio codec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.processors.option_values import checked_count
from vllm_mmout.processors.raw import describe
from vllm_mmout.wings.tokens.processors.base import marked
from vllm_mmout.wings.tokens.processors.decoder import DecoderProcessor

if TYPE_CHECKING:
    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout


class CodecAudioProcessor(DecoderProcessor):
    """Sounds from the tokens of Orpheus (SNAC), CSM (Mimi), OuteTTS (DAC) and their kin.

    Args:
        sampling_rate: samples of a channel in a second, Hz; by default what the decoder says.
        prompt: as of `TokenProcessor`, with the places {input}, {voice} and {instructions}.
        others: as of `DecoderProcessor` and `TokenProcessor`.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str] = "codec_audio"
    modality: ClassVar[str] = "audio"
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
        prompt: str | None = None,
    ) -> None:
        super().__init__(
            decoder,
            layout=layout,
            decoder_class=decoder_class,
            device=device,
            dtype=dtype,
            threads=threads,
            max_batch=max_batch,
            batch_wait_ms=batch_wait_ms,
            prompt=prompt,
        )
        self._rate = None if sampling_rate is None else checked_count("sampling_rate", sampling_rate)

    @property
    def sampling_rate(self) -> int | None:
        """Samples of a channel in a second, Hz; None: not known before the first sound."""
        return self._rate

    def formats(self, params: OutputParams) -> Mapping[str, str]:
        """The formats of sounds."""
        from vllm_mmout.outputs.audio import AudioOutput

        return AudioOutput.formats

    def decode_batch(self, media: Sequence[Medium]) -> list[AudioOutput]:
        """Make sounds of codes of one length, in one forward.

        Args:
            media: codes [n_k], one array a codebook, of sounds whose `batch_key` is equal.

        Returns:
            One sound a medium, partial where the medium is not complete.

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
        rate = self._sampling_rate()
        arrays = samples.float().cpu().numpy()
        return [marked(AudioOutput(np.array(sound), rate), medium) for sound, medium in zip(arrays, media, strict=True)]

    def _prepare(self, decoder: TokenDecoder) -> None:
        """Take the rate from the decoder where no option says it."""
        if self._rate is None:
            self._rate = decoder.facts.sampling_rate if decoder.facts else decoder.sampling_rate
        self._sampling_rate()

    def _sampling_rate(self) -> int:
        if self._rate is None:
            raise OptionError(
                "the decoder does not say its sampling rate; set the option sampling_rate, in Hz", param="sampling_rate"
            )
        return self._rate
