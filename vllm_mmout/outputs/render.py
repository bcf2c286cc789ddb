"""Pictures of rasters: colours for classes, a stretch of grey for measurements, transparency where nothing was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image


def render(array: NDArray[Any], valid: NDArray[np.bool_] | None, palette: NDArray[np.uint8] | None) -> Image:
    """A picture of a raster.

    One band of integers with a palette gets the palette's colours, black for values that it has none for. Three bands
    are red, green and blue; of any other number the first is shown in grey. uint8 bands without a palette, where there
    are three, are shown as they are; all else is stretched from the smallest to the largest valid value, the same for
    all bands.

    Args:
        array: [bands, height, width].
        valid: bool [height, width], False where the picture is to be transparent; None for nowhere.
        palette: uint8 [n, 3], colour of each value from 0.

    """
    from PIL import Image

    if palette is not None and len(array) == 1 and array.dtype.kind in "iub":
        samples = _coloured(array[0], palette)
    else:
        shown = array if len(array) == 3 else array[:1]
        as_is = len(shown) == 3 and shown.dtype == np.uint8
        samples = np.moveaxis(shown if as_is else _stretched(shown, valid), 0, 2)
    if valid is not None:
        samples = np.concatenate([samples, np.where(valid, np.uint8(255), np.uint8(0))[..., np.newaxis]], axis=2)
    return Image.fromarray(np.ascontiguousarray(samples[..., 0] if samples.shape[2] == 1 else samples))


def _coloured(ids: NDArray[Any], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]: the colour of each class."""
    table = np.concatenate([palette, np.zeros((1, 3), np.uint8)])
    known = (ids >= 0) & (ids < len(palette))
    coloured: NDArray[np.uint8] = table[np.where(known, ids, len(palette)).astype(np.intp)]
    return coloured


def _stretched(bands: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
    """uint8 [bands, height, width]: the smallest valid value black, the largest white."""
    values = bands.astype(np.float64)  # changed in place: previews of scenes have millions of pixels
    usable = np.isfinite(values)
    if valid is not None:
        usable &= valid
    if not usable.any():
        return np.zeros(bands.shape, np.uint8)
    np.copyto(values, values.min(where=usable, initial=np.inf), where=~usable)
    values *= 0.5  # the whole span of float64 does not fit float64
    low = values.min()
    span = values.max() - low
    if span == 0:
        return np.zeros(bands.shape, np.uint8)
    values -= low
    values /= span
    values *= 255.0
    return np.rint(values, out=values).astype(np.uint8)
