"""VQImageProcessor: pictures of models that write them as tokens of a VQ decoder."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.processors.raw import describe
from vllm_mmout.wings.tokens.decoders.base import read_table
from vllm_mmout.wings.tokens.processors.base import marked
from vllm_mmout.wings.tokens.processors.media_processor import DecoderProcessor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout

_IMAGE_FILE = "preprocessor_config.json"
"""Of an image processor alone, and of a whole model as transformers before version 5 saved it."""
_MODEL_FILE = "processor_config.json"
"""Of a whole model's processor, with its image processor in it."""


@dataclass(frozen=True)
class PixelNormalization:
    """What undoes the normalisation of pixels: ``pixel * std + mean`` is 0 for black and 1 for white."""

    mean: tuple[float, ...] = (0.5,)
    """One for all channels, or one a channel."""
    std: tuple[float, ...] = (0.5,)
    """One for all channels, or one a channel."""

    def bytes_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Quantise [n, channels, height, width] to uint8 [n, height, width, channels]: half to even, clamped, NaN 0."""
        import torch

        if any(len(values) not in (1, pixels.shape[1]) for values in (self.mean, self.std)):
            raise DecodeError(
                f"the decoder made {pixels.shape[1]} channels, mean and std have {len(self.mean)} and {len(self.std)}"
                " values; give one number, or one a channel"
            )
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device).reshape(1, -1, 1, 1)
            for values in (self.mean, self.std)
        )
        levels = ((pixels.to(torch.float32) * std + mean) * 255.0).round().clamp(0, 255)
        return torch.nan_to_num(levels, nan=0.0).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def normalization_of(
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    value_range: Sequence[float] | None,
) -> PixelNormalization | None:
    """What the options ``mean``, ``std`` and ``value_range`` say; None where they say nothing."""
    if value_range is not None:
        if mean is not None or std is not None:
            raise OptionError("value_range and mean or std say the same twice; leave one out", param="value_range")
        low, high = _numbers("value_range", value_range, 2)
        if low >= high:
            raise OptionError(
                f"value_range must be two finite numbers, the lower first, got {value_range!r}", param="value_range"
            )
        return PixelNormalization((-low / (high - low),), (1 / (high - low),))
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise OptionError("mean and std belong together; set both, or value_range", param="std" if mean else "mean")
    return PixelNormalization(_numbers("mean", mean), _checked_std("std", std))


def normalization_beside(folder: Path) -> PixelNormalization | None:
    """What the image processor says that lies in a decoder's folder, None without one."""
    for path in (folder / _MODEL_FILE, folder / _IMAGE_FILE):  # in the order of transformers
        table = read_table(path) if path.is_file() else {}
        own = table.get("image_processor") if path.name == _MODEL_FILE else table
        if own is None:
            continue
        if not isinstance(own, dict):
            raise OptionError(f"image_processor of {path} must be a table, got {own!r}", param="decoder")
        mean, std = own.get("image_mean"), own.get("image_std")
        if mean is not None and std is not None:
            return PixelNormalization(
                _numbers(f"image_mean of {path}", mean), _checked_std(f"image_std of {path}", std)
            )
    return None


def _checked_std(name: str, value: Any) -> tuple[float, ...]:
    numbers = _numbers(name, value)
    if min(numbers) <= 0:
        raise OptionError(f"{name} must be above 0, got {value!r}")
    return numbers


def _numbers(name: str, value: Any, count: int | None = None) -> tuple[float, ...]:
    """One number or several, finite."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    known = all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in values)
    if not known or not values or (count is not None and len(values) != count):
        wanted = f"{count} finite numbers" if count else "a finite number, or one a channel"
        raise OptionError(f"{name} must be {wanted}, got {value!r}")
    return tuple(float(one) for one in values)


_CHANNELS = (1, 3, 4)


class VQImageProcessor(DecoderProcessor):
    """Pictures from the tokens of Emu3, Janus and their kin.

    Of a picture that the stream left unfinished the whole rows are decoded; a decoder of one size is given code 0 for
    what is missing, and its picture is cut to the rows that came.

    Args:
        mean: of the normalisation that the decoder's pixels have, one number or one a channel; by default
            ``image_mean`` of a preprocessor_config.json or processor_config.json in the decoder's folder, else 0.5.
        std: the same, by default ``image_std``, else 0.5.
        value_range: instead of ``mean`` and ``std`` the pixels of black and white, (-1, 1) by default.
        prompt: as of `TokenProcessor`, with the places {prompt}, {rows} and {columns}.
        others: as of `DecoderProcessor` and `TokenProcessor`.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str] = "vq_image"
    modality: ClassVar[str] = "image"
    honours: ClassVar[frozenset[str]] = frozenset({"partial_images"})
    makes: ClassVar[Literal["image", "audio"]] = "image"

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
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        value_range: Sequence[float] | None = None,
        prompt: str | None = None,
    ) -> None:
        super().__init__(layout, decoder, decoder_class, device, dtype, threads, max_batch, batch_wait_ms, prompt)
        self._levels = normalization_of(mean, std, value_range)
        self._grid: tuple[int, int] | None = None

    def decode_batch(self, media: Sequence[Medium]) -> list[ImageOutput]:
        """Make pictures of codes [rows, columns] of one shape, in one forward; see `TokenProcessor.decode_batch`.

        Raises:
            DecodeError: the decoder made something else than pixels [n, 1, 3 or 4 channels, height, width].

        """
        pixels = self._decoded(media)
        known = pixels.ndim == 4 and pixels.shape[0] == len(media) and pixels.shape[1] in _CHANNELS
        if not known or not pixels.is_floating_point():
            raise DecodeError(
                f"the decoder must make floating-point pixels [{len(media)}, 1, 3 or 4 channels, height, width], got"
                f" {describe(pixels)}"
            )
        samples = (self._levels or PixelNormalization()).bytes_of(pixels).cpu().numpy()
        return [
            marked(ImageOutput(self._cut(picture, medium)), medium)
            for picture, medium in zip(samples, media, strict=True)
        ]

    def batch_key(self, medium: Medium) -> Hashable:
        """Pictures of one grid go together; for a decoder of one size all do."""
        return self._grid or super().batch_key(medium)

    def _prepare(self, decoder: TokenDecoder) -> None:
        """Take the normalisation from the decoder's folder, and the grid that it is bound to."""
        self._grid = decoder.facts.grid if decoder.facts else None
        if self._levels is None and self.decoder_folder is not None:
            self._levels = normalization_beside(self.decoder_folder)
        self._levels = self._levels or PixelNormalization()

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """The codes, filled up with code 0 where the decoder takes one size only."""
        if self._grid is None:
            return medium.codes
        missing = self._grid[0] - medium.codes[0].shape[0]
        return tuple(np.pad(ids, ((0, missing), (0, 0))) for ids in medium.codes)

    def _cut(self, picture: NDArray[np.uint8], medium: Medium) -> NDArray[np.uint8]:
        """One picture of a batch, its rows that came, in memory of its own; grey without an axis of channels."""
        if self._grid is not None:
            picture = picture[: picture.shape[0] * medium.codes[0].shape[0] // self._grid[0]]
        return np.array(picture[:, :, 0] if picture.shape[2] == 1 else picture)
