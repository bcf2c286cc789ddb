"""Decode pictures with VQ decoders of transformers, and sounds with its audio codecs."""

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

_MAX_SHOWN = 4
"""Maximum number of missing weights that an error message lists."""

_KEY_MAPPING = {r"^(model\.)?vqmodel\.": ""}
"""Mapping that removes a prefix from the names of decoder weights in a full model's checkpoint.

The key is a regular expression for the prefix, and the value is the replacement."""


class PretrainedDecoder(TokenDecoder):
    """Decoder from transformers, loaded from its own folder, or from the folder of a full model that contains it."""

    model_name: ClassVar[str]
    """Name of the decoder's class in transformers."""

    def __init__(self, config: Any, *, folder: Path | None = None, model: Any = None, inside: bool = False) -> None:
        self.facts = self.facts_of(config)
        self._config = config
        self._inside = inside
        self.folder = folder
        self.model = model

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any]) -> Self:
        """Create the decoder for a folder. Missing config fields get the defaults of transformers."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING

        is_whole_model = config["model_type"] != cls.kind
        try:
            parsed = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
            decoder = cls(parsed.vq_config if is_whole_model else parsed, folder=folder, inside=is_whole_model)
        except (StrictDataclassError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise OptionError(
                f"config.json of decoder {folder} is not a {cls.kind} config: {error}; download it again",
                param="decoder",
            ) from error
        check_weights(folder)
        return decoder

    @classmethod
    @abstractmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """Return facts from a decoder's config, such as the number of its codebooks, or its sampling rate."""

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights with transformers. Raise a ModelError if they are damaged or incomplete."""
        import transformers

        decoder_class = getattr(transformers, self.model_name)
        options = {"key_mapping": _KEY_MAPPING} if self._inside else {}
        if self._inside:  # do not warn about each other weight of a whole model
            decoder_class = type(
                self.model_name, (decoder_class,), {"_keys_to_ignore_on_load_unexpected": [r"^model\.", r"^lm_head\."]}
            )
        try:
            model, report = decoder_class.from_pretrained(
                folder, config=self._config, dtype=dtype, local_files_only=True, output_loading_info=True, **options
            )
        except Exception as error:  # damaged files raise errors of many kinds
            raise ModelError(
                f"the weights of decoder {folder} ({self.kind}) cannot be loaded: {type_and_message(error)};"
                " download it again"
            ) from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers fills them with random numbers
            more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
            raise ModelError(
                f"decoder {folder} ({self.kind}) lacks weights: {', '.join(missing[:_MAX_SHOWN])}{more}; save them from"
                f" {self.model_name} with save_pretrained, or download the whole decoder"
            )
        return model


class Emu3Decoder(PretrainedDecoder):
    """A decoder that runs ``Emu3VQVAE`` of transformers (https://arxiv.org/abs/2409.18869)."""

    kind: ClassVar[str] = "emu3_vqgan"
    model_name: ClassVar[str] = "Emu3VQVAE"

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """Return the codebook size from the model's config. There is one codebook, for pictures of any size."""
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.codebook_size)

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes [n, rows, columns] to pixels [n, channels, height, width]."""
        pixels: torch.Tensor = self.model.decode(codes[0])
        return pixels


class JanusDecoder(PretrainedDecoder):
    """A decoder that runs ``JanusVQVAE`` of transformers (https://arxiv.org/abs/2410.13848)."""

    kind: ClassVar[str] = "janus_vqgan"
    model_name: ClassVar[str] = "JanusVQVAE"

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """Return the size of the model's only codebook, and the square grid of codes that each picture has."""
        side = int(config.num_patches)
        return DecoderFacts(modality="image", codebooks=1, codebook_size=config.num_embeddings, grid=(side, side))

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes [n, rows, columns] to pixels [n, channels, height, width]."""
        pixels: torch.Tensor = self.model.decode(codes[0].flatten(1))
        return pixels


class ResidualCodec(PretrainedDecoder):
    """Audio codec from transformers. It can decode the codes of only the first codebooks, which gives a coarser sound.

    A codec with a single codebook always needs all codes.
    """

    codebooks_name: ClassVar[str] = "num_quantizers"
    """Name of the config field that holds the number of codebooks."""
    rate_name: ClassVar[str] = "sampling_rate"
    """Name of the config field that holds the sampling rate."""

    @classmethod
    def books_of(cls, config: Any) -> tuple[int, int]:
        """Return the number of codebooks, and the number of codes in each."""
        return getattr(config, cls.codebooks_name), config.codebook_size

    @classmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """Return facts from a decoder's config: the number and size of its codebooks, and its sampling rate."""
        codebooks, codebook_size = cls.books_of(config)
        return DecoderFacts(
            modality="audio",
            codebooks=codebooks,
            codebook_size=codebook_size,
            accepts_fewer=codebooks > 1,
            sampling_rate=getattr(config, cls.rate_name),
        )

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes, one tensor [n, frames] per codebook, to samples [n, channels, samples] or [n, samples]."""
        import torch

        samples: torch.Tensor = self.decoded(torch.stack(tuple(codes), dim=1)).audio_values
        return samples

    def decoded(self, codes: torch.Tensor) -> Any:
        """Call the model's ``decode`` with codes [n, codebooks, frames]."""
        return self.model.decode(codes, return_dict=True)


class CausalCodec(ResidualCodec):
    """Audio codec that decodes each frame without later frames, unless its config says otherwise."""

    def causal(self) -> CausalChunks | None:
        """Return an object that decodes one sound in chunks, or None if the decoder needs later frames."""
        from vllm_mmout.wings.tokens.decoders.causal import CausalChunks, is_causal

        return CausalChunks(self.model) if is_causal(self.model) else None


class MimiDecoder(CausalCodec):
    """A decoder that runs ``MimiModel`` of transformers (https://arxiv.org/abs/2410.00037)."""

    kind: ClassVar[str] = "mimi"
    model_name: ClassVar[str] = "MimiModel"


class XcodecDecoder(ResidualCodec):
    """A decoder that runs ``XcodecModel`` of transformers (https://arxiv.org/abs/2408.17175)."""

    kind: ClassVar[str] = "xcodec"
    model_name: ClassVar[str] = "XcodecModel"
    rate_name: ClassVar[str] = "sample_rate"


class Xcodec2Decoder(ResidualCodec):
    """A decoder that runs ``Xcodec2Model`` of transformers, the codec of Llasa (https://arxiv.org/abs/2502.04128).

    Its only codebook has a code for each combination of quantisation levels.
    """

    kind: ClassVar[str] = "xcodec2"
    model_name: ClassVar[str] = "Xcodec2Model"

    @classmethod
    def books_of(cls, config: Any) -> tuple[int, int]:
        """Return the number of codebooks, which is always 1, and the number of codes in the codebook.

        The number of codes is the product of the quantization levels in the config.
        """
        return 1, math.prod(config.quantization_levels)


class EncodecDecoder(CausalCodec):
    """A decoder that runs ``EncodecModel`` of transformers (https://arxiv.org/abs/2210.13438)."""

    kind: ClassVar[str] = "encodec"
    model_name: ClassVar[str] = "EncodecModel"

    def decoded(self, codes: torch.Tensor) -> Any:
        """Call the model's ``decode`` with all codes as one chunk, without scaling the volume of the samples."""
        return self.model.decode(codes.unsqueeze(0), [None], return_dict=True)


class DacDecoder(ResidualCodec):
    """A decoder that runs ``DacModel`` of transformers, the Descript Audio Codec (https://arxiv.org/abs/2306.06546)."""

    kind: ClassVar[str] = "dac"
    model_name: ClassVar[str] = "DacModel"
    codebooks_name: ClassVar[str] = "n_codebooks"

    def decoded(self, codes: torch.Tensor) -> Any:
        """Call the model's ``decode`` with the codes as the keyword argument ``audio_codes``."""
        return self.model.decode(audio_codes=codes, return_dict=True)
