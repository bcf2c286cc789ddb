"""Emu3's VQ decoder: pictures of any size from one codebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.processors.decoders.facts import DecoderFacts
from vllm_mmout.processors.decoders.pretrained import PretrainedDecoder

if TYPE_CHECKING:
    import torch


class Emu3Decoder(PretrainedDecoder):
    """``Emu3VQVAE`` of transformers (https://arxiv.org/abs/2409.18869)."""

    kind: ClassVar[str] = "emu3_vqgan"
    config_name: ClassVar[str] = "Emu3VQVAEConfig"
    model_name: ClassVar[str] = "Emu3VQVAE"
    whole: ClassVar[dict[str, str]] = {"emu3": "Emu3Config"}

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """One codebook, any grid."""
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.codebook_size)

    def call(self, model: Any, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode [n, rows, columns] to [n, channels, height, width]."""
        pixels: torch.Tensor = model.decode(codes[0])
        return pixels
