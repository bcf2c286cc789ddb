"""VQImageProcessor: pictures of models that write them as tokens of a VQ decoder."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.processors.decoders.grey_levels import GreyLevels, grey_levels, levels_beside
from vllm_mmout.processors.decoders.processor import DecoderProcessor
from vllm_mmout.processors.raw import describe
from vllm_mmout.processors.tokens import marked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.processors.decoders.base import TokenDecoder
    from vllm_mmout.tokens import Medium, TokenLayout

_CHANNELS = (1, 3, 4)


class VQImageProcessor(DecoderProcessor):
    """Pictures from the tokens of Emu3, Janus and their kin.

    Of a picture that the stream left unfinished the whole rows are decoded; a decoder of one size is given code 0 for
    what is missing, and its picture is cut to the rows that came.

    Args:
        layout: how the model writes pictures, a `TokenLayout` or a mapping of its fields.
        decoder: the decoder's folder, relative to the model's; from Python also an object with ``decode(codes)``.
        decoder_class: "package.module:Class" with ``from_pretrained(folder)`` and ``decode(codes)``; None: known by
            the folder's config.json.
        device: where the decoder runs, "cpu" or "cuda:0"; None: the CPU, or where an object lies.
        dtype: "float32", "bfloat16", ...; None: float32, or that of an object.
        threads: of torch while the decoder runs; None: torch's own number.
        max_batch: pictures that are decoded at once, at most.
        batch_wait_ms: how long the first of them waits for others, milliseconds.
        mean: of the normalisation that the decoder's pixels have, one number or one a channel; by default
            ``image_mean`` of a preprocessor_config.json or processor_config.json in the decoder's folder, else 0.5.
        std: the same, by default ``image_std``, else 0.5.
        value_range: instead of ``mean`` and ``std`` the pixels of black and white, (-1, 1) by default.
        prompt: as of `TokenProcessor`, with the places {prompt}, {rows} and {columns}.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str] = "vq_image"
    modality: ClassVar[str] = "image"
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
        self._levels = grey_levels(mean, std, value_range)
        self._grid: tuple[int, int] | None = None

    def decode_batch(self, media: Sequence[Medium]) -> list[ImageOutput]:
        """Make pictures of codes of one shape, in one forward.

        Args:
            media: codes [rows, columns] of pictures whose `batch_key` is equal.

        Returns:
            One picture a medium, partial where the medium is not complete.

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
        samples = (self._levels or GreyLevels()).bytes_of(pixels).cpu().numpy()
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
            self._levels = levels_beside(Path(self.decoder_folder))
        self._levels = self._levels or GreyLevels()

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
