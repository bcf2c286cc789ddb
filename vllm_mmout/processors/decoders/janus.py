"""Janus' VQ decoder: pictures of one size from one codebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.processors.decoders.facts import DecoderFacts
from vllm_mmout.processors.decoders.pretrained import PretrainedDecoder

if TYPE_CHECKING:
    import torch


class JanusDecoder(PretrainedDecoder):
    """``JanusVQVAE`` of transformers (https://arxiv.org/abs/2410.13848)."""

    kind: ClassVar[str] = "janus_vqgan"
    config_name: ClassVar[str] = "JanusVQVAEConfig"
    model_name: ClassVar[str] = "JanusVQVAE"
    whole: ClassVar[dict[str, str]] = {"janus": "JanusConfig"}

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """One codebook; as many rows as columns, said in the config."""
        side = int(config.num_patches)
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.num_embeddings, grid=(side, side))

    def call(self, model: Any, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode [n, rows, columns] to [n, channels, height, width]."""
        pixels: torch.Tensor = model.decode(codes[0].flatten(1))
        return pixels
