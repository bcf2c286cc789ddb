"""Output processor for models that generate pictures as tokens of a VQ (vector quantisation) decoder."""

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
"""Name of the config file of an image processor.

Before version 5, transformers also used this file for processors that combine an image processor with a tokenizer.
"""
_MODEL_FILE = "processor_config.json"
"""Name of the config file of a processor for pictures and texts. The file contains the image processor's config."""


@dataclass(frozen=True)
class PixelNormalization:
    """Normalisation of a decoder's pixels. ``pixel * std + mean`` is the brightness, 0 for black and 1 for white."""

    mean: tuple[float, ...] = (0.5,)
    """Mean of the pixel values: one number for all channels, or one number per channel."""
    std: tuple[float, ...] = (0.5,)
    """Standard deviation of the pixel values: one number for all channels, or one number per channel."""

    def bytes_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert the decoder's pixels, float [n, channels, height, width], to uint8 [n, height, width, channels].

        Values are rounded half to even and clamped. NaN becomes 0.
        """
        import torch

        if any(len(values) not in (1, pixels.shape[1]) for values in (self.mean, self.std)):
            raise DecodeError(
                f"the decoder made {pixels.shape[1]} channels, but mean and std have {len(self.mean)} and"
                f" {len(self.std)} values; give one number, or one per channel"
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
    """Return the pixel normalisation from the options ``mean``, ``std`` and ``value_range``, or None without them."""
    if value_range is not None:
        if mean is not None or std is not None:
            raise OptionError("value_range cannot be combined with mean or std; leave one out", param="value_range")
        low, high = _numbers("value_range", value_range, 2)
        if low >= high:
            raise OptionError(
                f"value_range must be two finite numbers, the lower first, got {value_range!r}", param="value_range"
            )
        return PixelNormalization((-low / (high - low),), (1 / (high - low),))
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise OptionError(
            "mean and std belong together; set both, or value_range", param="mean" if mean is None else "std"
        )
    return PixelNormalization(_numbers("mean", mean), _checked_std("std", std))


def normalization_beside(folder: Path) -> PixelNormalization | None:
    """Read the pixel normalisation from an image processor's config in ``folder``. Return None without a config."""
    for path in (folder / _MODEL_FILE, folder / _IMAGE_FILE):  # transformers reads them in this order
        table = read_table(path) if path.is_file() else {}
        image_processor = table.get("image_processor") if path.name == _MODEL_FILE else table
        if image_processor is None:
            continue
        if not isinstance(image_processor, dict):
            raise OptionError(f"image_processor of {path} must be a table, got {image_processor!r}", param="decoder")
        mean, std = image_processor.get("image_mean"), image_processor.get("image_std")
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
    """Check that ``value`` is a finite number or a sequence of finite numbers, and return it as a tuple."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    finite = all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number) for number in values
    )
    if not finite or not values or (count is not None and len(values) != count):
        expected = f"{count} finite numbers" if count else "a finite number, or one per channel"
        raise OptionError(f"{name} must be {expected}, got {value!r}")
    return tuple(float(number) for number in values)


_CHANNELS = (1, 3, 4)


class VQImageProcessor(DecoderProcessor):
    """Output processor that decodes pictures of models such as Emu3 and Janus from their tokens.

    If the stream ended inside a picture, its whole rows are decoded. A decoder with a fixed picture size gets code 0
    for the missing rows, and the picture is then cut to the rows that came.

    Args:
        mean: mean with which the decoder's pixels are normalised, one number or one per channel. By default
            ``image_mean`` of a preprocessor_config.json or processor_config.json in the decoder's folder, else 0.5.
        std: standard deviation of the same normalisation. By default ``image_std`` of that file, else 0.5.
        value_range: pixel values of black and white, in place of ``mean`` and ``std``. By default (-1, 1).
        prompt: see `TokenProcessor`. The places are {prompt}, {rows} and {columns}.
        others: see `DecoderProcessor` and `TokenProcessor`.

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
        """Decode pictures of equal size in one forward pass, each from codes [rows, columns].

        Raises:
            DecodeError: the decoder's result is not pixels [n, 1, 3 or 4 channels, height, width].

        """
        pixels = self._decoded(media)
        shape_fits = pixels.ndim == 4 and pixels.shape[0] == len(media) and pixels.shape[1] in _CHANNELS
        if not shape_fits or not pixels.is_floating_point():
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
        """Return a key for the picture ``medium``. Only pictures with equal keys are decoded in one batch.

        If the decoder has a fixed picture size, all pictures have the same key. Otherwise the key is the shape of the
        picture's codes.
        """
        return self._grid or super().batch_key(medium)

    def _prepare(self, decoder: TokenDecoder) -> None:
        """Read the pixel normalisation from the decoder's folder, and the size of its pictures if it is fixed."""
        self._grid = decoder.facts.grid if decoder.facts else None
        if self._levels is None and self.decoder_folder is not None:
            self._levels = normalization_beside(self.decoder_folder)
        self._levels = self._levels or PixelNormalization()

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """Return the codes of a picture, padded with code 0 if the decoder has a fixed picture size."""
        if self._grid is None:
            return medium.codes
        missing = self._grid[0] - medium.codes[0].shape[0]
        return tuple(np.pad(ids, ((0, missing), (0, 0))) for ids in medium.codes)

    def _cut(self, picture: NDArray[np.uint8], medium: Medium) -> NDArray[np.uint8]:
        """Return a copy of a decoded picture without padded rows. A grey picture also loses its channel axis."""
        if self._grid is not None:
            picture = picture[: picture.shape[0] * medium.codes[0].shape[0] // self._grid[0]]
        return np.array(picture[:, :, 0] if picture.shape[2] == 1 else picture)
