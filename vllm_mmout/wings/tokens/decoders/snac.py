"""Decode sounds with the package snac, whose codebooks have different numbers of codes per frame."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import ModelError, OptionError, type_and_message
from vllm_mmout.wings.tokens.decoders.base import DecoderFacts, TokenDecoder, check_weights

if TYPE_CHECKING:
    import torch


class SnacDecoder(TokenDecoder):
    """A decoder that runs ``SNAC`` of the package snac (https://arxiv.org/abs/2410.14411).

    Values missing in its config have the package's defaults. If the config sets ``noise``, the decoder mixes in random
    numbers, so two decodes of the same codes differ slightly.
    """

    kind: ClassVar[str] = "snac"

    def __init__(self, config: Mapping[str, Any], *, folder: Path | None = None, model: Any = None) -> None:
        try:
            strides = tuple(int(stride) for stride in config["vq_strides"])
            window = config.get("attn_window_size", 32)
            self._window = 1 if window is None else int(window)
            self.facts = DecoderFacts(
                modality="audio",
                codebooks=len(strides),
                codebook_size=int(config.get("codebook_size", 4096)),
                strides=strides,
                sampling_rate=int(config.get("sampling_rate", 44100)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(
                f"config.json of decoder {folder} is not a SNAC config: {error!r}; download it again", param="decoder"
            ) from error
        self._strides = strides
        self.folder = folder
        self.model = model

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any]) -> SnacDecoder:
        """Create the decoder of a folder with weights. Check that the package snac is installed."""
        decoder = cls(config, folder=folder)
        check_weights(folder)
        _package()
        return decoder

    def unit(self, rates: Sequence[int]) -> int:
        """Return the smallest number of frames whose codes fill whole attention windows of the decoder.

        The decoder has local attention, and would pad an incomplete window. ``rates`` holds the number of codes per
        frame in each codebook.
        """
        steps = rates[0] * self._strides[0]
        return math.lcm(self._window, steps) // steps

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes, one tensor [n, codes] per codebook, to samples [n, channels, samples].

        A decoder with attention windows only takes whole windows. An incomplete window is filled with code 0, as the
        encoder fills it with silence, and the extra samples are cut off.
        """
        import torch

        steps = codes[0].shape[1] * self._strides[0]
        unit = math.lcm(self._window, *self._strides)
        whole = -(-steps // unit) * unit if self._window > 1 else steps
        filled = [
            torch.nn.functional.pad(ids, (0, (whole - steps) // stride))
            for ids, stride in zip(codes, self._strides, strict=True)
        ]
        samples: torch.Tensor = self.model.decode(filled)
        return samples[..., : samples.shape[-1] * steps // whole]

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights with the package snac. Raise a ModelError if they are damaged."""
        try:
            model = _package().SNAC.from_pretrained(str(folder))
        except Exception as error:  # damaged files raise errors of many kinds
            raise ModelError(
                f"the weights of decoder {folder} (snac) cannot be loaded: {type_and_message(error)}; download it again"
            ) from error
        return model.to(dtype)


def _package() -> Any:
    """Import the package snac. Raise an OptionError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised by torch.jit.script, which snac uses
            import snac
    except ImportError as error:
        raise OptionError(
            f'decoding SNAC needs the package snac ({error}); pip install "vllm-mmout[snac]"', param="decoder"
        ) from error
    return snac
