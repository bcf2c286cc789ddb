"""How much each tile counts where tiles overlap, along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Blend: TypeAlias = Literal["cosine", "linear", "none"]
"""The shape of the ramp from one tile to the next; "none" is a step."""


def axis_weights(starts: Sequence[int], tile: int, size: int, blend: Blend) -> list[NDArray[np.float64]]:
    """Weights of the tiles along one axis; that of a pixel is the product of its row's and its column's.

    Where two tiles share z pixels, the z / 4 at the end of each count nothing in it, since it saw little around them;
    between lies the ramp, ``t`` or ``sin(pi t / 2) ** 2``. At the scene's edge a tile counts fully. With "none" each
    tile ends in the middle of what it shares.

    Args:
        starts: first pixel of each tile, ascending.
        tile: pixels of a tile; one that reaches beyond ``size`` ends there.
        size: pixels of the scene.
        blend: shape of the ramp.

    Returns:
        One array a tile, of the length that it has within the scene, its positive weights in one run. At each pixel the
        weights of all tiles sum to one.

    """
    ends = [min(start + tile, size) for start in starts]
    borders = list(zip(starts[1:], ends[:-1], strict=True))  # what neighbours share: from the one's start to the end
    weights = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        weight, pixels = np.ones(end - start), np.arange(start, end)
        if number:
            weight *= _rising(pixels, *borders[number - 1], blend)
        if number < len(borders):
            weight *= _falling(pixels, *borders[number], blend)
        weights.append(weight)
    total = np.zeros(size)
    for start, end, weight in zip(starts, ends, weights, strict=True):
        total[start:end] += weight
    return [weight / total[start:end] for start, end, weight in zip(starts, ends, weights, strict=True)]


def _rising(pixels: NDArray[np.int_], first: int, last: int, blend: Blend) -> NDArray[np.float64]:
    """From 0 after the first quarter of [first, last) to 1 before the last, at the centres of pixels."""
    if blend == "none" or first >= last:
        return (pixels >= (first + last) // 2).astype(np.float64)
    along = np.clip((4 * pixels + 2 - 3 * first - last) / (2 * (last - first)), 0.0, 1.0)
    return along if blend == "linear" else np.sin(along * (np.pi / 2)) ** 2


def _falling(pixels: NDArray[np.int_], first: int, last: int, blend: Blend) -> NDArray[np.float64]:
    """From 1 to 0: the mirror image, bit by bit, of what rises there."""
    if blend == "none":
        return 1.0 - _rising(pixels, first, last, blend)
    return _rising(-1 - pixels, -last, -first, blend)
