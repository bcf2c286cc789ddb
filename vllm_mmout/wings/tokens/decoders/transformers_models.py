"""Decoders that are models of transformers: VQ decoders of pictures, and codecs of one rate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import ModelError, OptionError, type_and_message
from vllm_mmout.wings.tokens.decoders.base import DecoderFacts, TokenDecoder, check_weights

if TYPE_CHECKING:
    import torch

    from vllm_mmout.wings.tokens.decoders.causal import CausalChunks

_SHOWN = 4
"""Names of weights listed in a message."""

_INSIDE = {r"^(model\.)?vqmodel\.": ""}
"""Where a whole model keeps its decoder's weights -> where the decoder alone has them."""


class PretrainedDecoder(TokenDecoder):
    """A decoder of transformers, known by ``model_type``; a whole model's folder serves where it has one inside."""

    model_name: ClassVar[str]
    """The class of the decoder in transformers."""

    def __init__(self, config: Any, *, folder: Path | None = None, model: Any = None, inside: bool = False) -> None:
        self.facts = self.facts_of(config)
        self._config = config
        self._inside = inside
        self.folder = folder
        self.model = model

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any]) -> Self:
        """Read its config.json by the class of transformers, which knows what is left out there."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING

        whole = config["model_type"] != cls.kind
        try:
            known = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
            made = cls(known.vq_config if whole else known, folder=folder, inside=whole)
        except (StrictDataclassError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise OptionError(
                f"config.json of decoder {folder} is no {cls.kind}: {error}; download it again", param="decoder"
            ) from error
        check_weights(folder)
        return made

    @classmethod
    @abstractmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """What the config says."""

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights by transformers."""
        import transformers

        kind = getattr(transformers, self.model_name)
        options = {"key_mapping": _INSIDE} if self._inside else {}
        if self._inside:  # what else a whole model has is not missed here, and not worth a warning for each
            kind = type(self.model_name, (kind,), {"_keys_to_ignore_on_load_unexpected": [r"^model\.", r"^lm_head\."]})
        try:
            model, report = kind.from_pretrained(
                folder, config=self._config, dtype=dtype, local_files_only=True, output_loading_info=True, **options
            )
        except Exception as error:  # the readers of weights raise all kinds of errors at damaged files
            raise ModelError(
                f"the weights of decoder {folder} ({self.kind}) cannot be loaded: {type_and_message(error)};"
                " download it again"
            ) from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers fills them with random numbers
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise ModelError(
                f"decoder {folder} ({self.kind}) lacks weights: {', '.join(missing[:_SHOWN])}{more}; save them from"
                f" {self.model_name} with save_pretrained, or download the whole decoder"
            )
        return model


class Emu3Decoder(PretrainedDecoder):
    """``Emu3VQVAE`` of transformers (https://arxiv.org/abs/2409.18869)."""

    kind: ClassVar[str] = "emu3_vqgan"
    model_name: ClassVar[str] = "Emu3VQVAE"

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """One codebook, any grid."""
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.codebook_size)

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode [n, rows, columns] to [n, channels, height, width]."""
        pixels: torch.Tensor = self.model.decode(codes[0])
        return pixels


class JanusDecoder(PretrainedDecoder):
    """``JanusVQVAE`` of transformers (https://arxiv.org/abs/2410.13848)."""

    kind: ClassVar[str] = "janus_vqgan"
    model_name: ClassVar[str] = "JanusVQVAE"

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """One codebook; as many rows as columns, said in the config."""
        side = int(config.num_patches)
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.num_embeddings, grid=(side, side))

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode [n, rows, columns] to [n, channels, height, width]."""
        pixels: torch.Tensor = self.model.decode(codes[0].flatten(1))
        return pixels


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

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode one [n, frames] a codebook to [n, channels, samples], or [n, samples]."""
        import torch

        samples: torch.Tensor = self.decoded(torch.stack(tuple(codes), dim=1)).audio_values
        return samples

    def decoded(self, codes: torch.Tensor) -> Any:
        """What the model makes of codes [n, codebooks, frames]."""
        return self.model.decode(codes, return_dict=True)


class CausalCodec(ResidualCodec):
    """A codec that does not look ahead, unless its config says so."""

    def causal(self) -> CausalChunks | None:
        """See `TokenDecoder.causal`."""
        from vllm_mmout.wings.tokens.decoders.causal import CausalChunks, is_causal

        return CausalChunks(self.model) if is_causal(self.model) else None


class MimiDecoder(CausalCodec):
    """``MimiModel`` (https://arxiv.org/abs/2410.00037)."""

    kind: ClassVar[str] = "mimi"
    model_name: ClassVar[str] = "MimiModel"


class XcodecDecoder(ResidualCodec):
    """``XcodecModel`` (https://arxiv.org/abs/2408.17175)."""

    kind: ClassVar[str] = "xcodec"
    model_name: ClassVar[str] = "XcodecModel"
    rate_name: ClassVar[str] = "sample_rate"


class Xcodec2Decoder(ResidualCodec):
    """``Xcodec2Model``, the codec of Llasa (https://arxiv.org/abs/2502.04128): one codebook, of all level vectors."""

    kind: ClassVar[str] = "xcodec2"
    model_name: ClassVar[str] = "Xcodec2Model"

    @classmethod
    def books_of(cls, config: Any) -> tuple[int, int]:
        """A code stands for one level in each dimension."""
        return 1, math.prod(config.quantization_levels)


class EncodecDecoder(CausalCodec):
    """``EncodecModel`` (https://arxiv.org/abs/2210.13438)."""

    kind: ClassVar[str] = "encodec"
    model_name: ClassVar[str] = "EncodecModel"

    def decoded(self, codes: torch.Tensor) -> Any:
        """As one chunk without a scale."""
        return self.model.decode(codes.unsqueeze(0), [None], return_dict=True)


class DacDecoder(ResidualCodec):
    """``DacModel``, the Descript Audio Codec (https://arxiv.org/abs/2306.06546)."""

    kind: ClassVar[str] = "dac"
    model_name: ClassVar[str] = "DacModel"
    codebooks_name: ClassVar[str] = "n_codebooks"

    def decoded(self, codes: torch.Tensor) -> Any:
        """By keyword: its first argument is something else."""
        return self.model.decode(audio_codes=codes, return_dict=True)
