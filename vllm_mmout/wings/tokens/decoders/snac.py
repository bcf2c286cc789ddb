"""SNAC: sound from codebooks of different rates, by the package of its authors."""

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
    """``SNAC`` of the package snac (https://arxiv.org/abs/2410.14411).

    What its config leaves out has the package's own defaults. With ``noise`` there random numbers are mixed in: two
    decodes of the same codes differ a little.
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
                f"config.json of decoder {folder} is no SNAC: {error!r}; download it again", param="decoder"
            ) from error
        self._strides = strides
        self.folder = folder
        self.model = model

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any]) -> SnacDecoder:
        """Make it of a folder with weights, and see that the package is there."""
        made = cls(config, folder=folder)
        check_weights(folder)
        _package()
        return made

    def unit(self, rates: Sequence[int]) -> int:
        """Whole windows of attention, as whole frames."""
        steps = rates[0] * self._strides[0]
        return math.lcm(self._window, steps) // steps

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode one [n, codes] a codebook to [n, channels, samples].

        A decoder with windows of attention takes whole windows only: what is short of one is filled up with code 0,
        as its encoder fills up with silence, and cut off again.
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
        """Read the weights by the package's own code."""
        try:
            model = _package().SNAC.from_pretrained(str(folder))
        except Exception as error:  # the reader of weights raises all kinds of errors at damaged files
            raise ModelError(
                f"the weights of decoder {folder} (snac) cannot be loaded: {type_and_message(error)}; download it again"
            ) from error
        return model.to(dtype)


def _package() -> Any:
    """The package snac."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script, which it uses
            import snac
    except ImportError as error:
        raise OptionError(
            f'decoding SNAC needs the package snac ({error}); pip install "vllm-mmout[snac]"', param="decoder"
        ) from error
    return snac
