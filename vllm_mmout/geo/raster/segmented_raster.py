"""Class `OpenSegments`: base class of opened rasters that are stored in strips or tiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.sequence import read_blocks, read_windows
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster, Tiles

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.raster import Window
    from vllm_mmout.geo.raster.segmented_image import SegmentedImage
    from vllm_mmout.geo.raster.window_blocks import Slots


class OpenSegments(OpenRaster):
    """An opened raster that is stored in segments (strips or tiles), with an optional mask image."""

    def __init__(self, *, masked_by_alpha: bool, **facts: Any) -> None:
        super().__init__(**facts)
        self._masked_by_alpha = masked_by_alpha

    @abstractmethod
    def _image(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]]:
        """Return the image that stores the bands with the indices ``places``, and each band's index in that image.

        ``places`` are indices of the raster's bands, from 0, without repetition.
        """

    @abstractmethod
    def _masks(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]] | None:
        """Return an image whose bands are masks, and the indices of the masks for the band indices ``places``.

        A pixel is valid where all these masks are not 0. Return None if the raster has no masks.
        """

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        alpha = self.alpha - 1 if masked and self.alpha is not None and self._masked_by_alpha else None
        bands = list(dict.fromkeys([*places, *([] if alpha is None else [alpha])]))  # each band is read once
        rows = {band: row for row, band in enumerate(bands)}
        order = [rows[place] for place in places]
        plain = order == list(range(len(order)))
        with ExitStack() as stack:
            image, own_bands = self._image(bands)
            arrays = stack.enter_context(closing(read_windows(image, windows, own_bands)))
            masks = stack.enter_context(closing(self._read_masks(windows, bands, masked=masked)))
            for array, mask in zip(arrays, masks, strict=True):
                pixels = array[: len(order)] if plain else array[order]
                yield pixels, mask if alpha is None else array[rows[alpha]] != 0

    def _read_masks(
        self, windows: Sequence[Window], bands: Sequence[int], *, masked: bool
    ) -> Generator[NDArray[np.bool_] | None, None, None]:
        """Yield the validity mask, bool [height, width], of each window. Yield None for each window without a mask.

        If ``masked`` is False, masks are not read, and all windows get None.
        """
        image = self._masks(bands) if masked else None
        if image is None:
            yield from repeat(None, len(windows))
            return
        with closing(read_windows(image[0], windows, image[1])) as arrays:
            for array in arrays:
                yield (array != 0).all(axis=0)

    def _tiles(self, windows: Sequence[Window], places: Sequence[int], slots: Slots, *, masked: bool) -> Tiles:
        if (masked and self.alpha is not None and self._masked_by_alpha) or len(set(places)) < len(places):
            yield from super()._tiles(windows, places, slots, masked=masked)
            return
        image, own_bands = self._image(places)
        with (
            closing(read_blocks(image, windows, own_bands, slots)) as arrays,
            closing(self._read_masks(windows, places, masked=masked)) as masks,
        ):
            for array in arrays:
                yield array, list(islice(masks, len(array)))
                self._check_open()
