"""Mimi, DAC, EnCodec, X-Codec and X-Codec 2: sound from codebooks of one rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.processors.decoders.facts import DecoderFacts
from vllm_mmout.processors.decoders.pretrained import PretrainedDecoder

if TYPE_CHECKING:
    import torch


class ResidualCodec(PretrainedDecoder):
    """A codec of transformers; its first codebooks alone give a coarser sound."""

    codebooks_name: ClassVar[str] = "num_quantizers"
    """What its config calls the number of codebooks."""
    rate_name: ClassVar[str] = "sampling_rate"
    """What its config calls the rate of samples."""

    @classmethod
    def books_of(cls, config: Any) -> tuple[int, int]:
        """How many codebooks there are, and how many codes each has."""
        return getattr(config, cls.codebooks_name), config.codebook_size

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """What its config says."""
        codebooks, codebook_size = cls.books_of(config)
        return DecoderFacts(
            modality="audio",
            codebooks=codebooks,
            codebook_size=codebook_size,
            fewer=codebooks > 1,
            sampling_rate=getattr(config, cls.rate_name),
        )

    def call(self, model: Any, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode one [n, frames] a codebook to [n, channels, samples], or [n, samples]."""
        import torch

        samples: torch.Tensor = self.decoded(model, torch.stack(tuple(codes), dim=1)).audio_values
        return samples

    def decoded(self, model: Any, codes: torch.Tensor) -> Any:
        """What the model makes of codes [n, codebooks, frames]."""
        return model.decode(codes, return_dict=True)


class MimiDecoder(ResidualCodec):
    """``MimiModel`` (https://arxiv.org/abs/2410.00037)."""

    kind: ClassVar[str] = "mimi"
    config_name: ClassVar[str] = "MimiConfig"
    model_name: ClassVar[str] = "MimiModel"


class XcodecDecoder(ResidualCodec):
    """``XcodecModel`` (https://arxiv.org/abs/2408.17175)."""

    kind: ClassVar[str] = "xcodec"
    config_name: ClassVar[str] = "XcodecConfig"
    model_name: ClassVar[str] = "XcodecModel"
    rate_name: ClassVar[str] = "sample_rate"


class Xcodec2Decoder(ResidualCodec):
    """``Xcodec2Model``, the codec of Llasa (https://arxiv.org/abs/2502.04128): one codebook, of all level vectors."""

    kind: ClassVar[str] = "xcodec2"
    config_name: ClassVar[str] = "Xcodec2Config"
    model_name: ClassVar[str] = "Xcodec2Model"

    @classmethod
    def books_of(cls, config: Any) -> tuple[int, int]:
        """A code stands for one level in each dimension."""
        return 1, math.prod(config.quantization_levels)


class EncodecDecoder(ResidualCodec):
    """``EncodecModel`` (https://arxiv.org/abs/2210.13438)."""

    kind: ClassVar[str] = "encodec"
    config_name: ClassVar[str] = "EncodecConfig"
    model_name: ClassVar[str] = "EncodecModel"

    def decoded(self, model: Any, codes: torch.Tensor) -> Any:
        """As one chunk without a scale."""
        return model.decode(codes.unsqueeze(0), [None], return_dict=True)


class DacDecoder(ResidualCodec):
    """``DacModel``, the Descript Audio Codec (https://arxiv.org/abs/2306.06546)."""

    kind: ClassVar[str] = "dac"
    config_name: ClassVar[str] = "DacConfig"
    model_name: ClassVar[str] = "DacModel"
    codebooks_name: ClassVar[str] = "n_codebooks"

    def decoded(self, model: Any, codes: torch.Tensor) -> Any:
        """By keyword: its first argument is something else."""
        return model.decode(audio_codes=codes, return_dict=True)
