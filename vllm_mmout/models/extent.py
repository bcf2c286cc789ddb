"""Whether an image processor only scales pictures, measured: what it says of itself does not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPES = ((360, 600), (600, 360), (512, 512))
"""Pictures to try, oblong ones among them: many processors crop only these."""
_EDGE = 0.015
"""How far from the end of a ramp, beside half a pixel, its first and last pixel may lie."""


def keeps_extent(process: Callable[[NDArray[np.uint8]], NDArray[Any]]) -> bool:
    """Whether a processor's result covers what its input covers: nothing cropped, padded, turned or cut into pieces.

    Args:
        process: gives for a picture, uint8 [3, height, width], the pixels [channels, height, width].

    """
    try:
        return all(_keeps(process, height, width) for height, width in _SHAPES)
    except (ValueError, TypeError, KeyError, IndexError):  # it takes other pictures, or gives something else
        return False


def _keeps(process: Callable[[NDArray[np.uint8]], NDArray[Any]], height: int, width: int) -> bool:
    black, white = (process(np.full((3, height, width), value, np.uint8)) for value in (0, 255))
    if black.ndim != 3 or np.ptp(black, axis=(1, 2)).any() or np.ptp(white, axis=(1, 2)).any():
        return False  # other axes, or a border that is not of the picture
    span = (white - black)[:, :1, :1]
    for axis, size in ((1, height), (2, width)):
        ramp = np.linspace(0, 255, size).round().astype(np.uint8)
        picture = np.broadcast_to(ramp if axis == 2 else ramp[:, None], (3, height, width))
        seen = (process(np.ascontiguousarray(picture)) - black) / span
        first, last = seen.take(0, axis), seen.take(-1, axis)
        allowed = _EDGE + 0.5 / seen.shape[axis]
        if first.max() > allowed or last.min() < 1 - allowed:
            return False
    return True
