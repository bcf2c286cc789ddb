"""Classes: whether numbers name them, and their default colours, which colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Okabe & Ito (2008), "Color Universal Design": colours told apart with every kind of colour vision.
_OKABE_ITO = (
    (0, 0, 0),
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
_GOLDEN = 0.6180339887498949


def are_classes(
    dtype: np.dtype[Any], class_names: Sequence[str] | None = None, palette: NDArray[np.uint8] | None = None
) -> bool:
    """Whether numbers name classes, which have no mean: integers that have names or colours, and bool."""
    named = class_names is not None or palette is not None
    return dtype == np.bool_ or (dtype.kind in "iu" and named)


@cache
def default_palette(classes: int) -> NDArray[np.uint8]:
    """Colours for class ids from 0, uint8 [classes, 3]: eight of Okabe and Ito, then hues a golden angle apart.

    A longer palette begins with the shorter one, so that a class keeps its colour. Read-only, as it is shared.
    """
    base = np.array(_OKABE_ITO, np.uint8)
    step = np.arange(max(classes - len(base), 0))
    hue = step * _GOLDEN % 1.0
    value = np.array([0.95, 0.7, 0.45])[step % 3]
    saturation = np.array([0.75, 0.45])[step // 3 % 2]
    # HSV to RGB in closed form (Foley et al.): channel n has k = (n + 6 * hue) mod 6, n = 5, 3, 1 for red, green, blue.
    k = (np.array([5, 3, 1]) + 6 * hue[:, None]) % 6
    ramp = np.clip(np.minimum(k, 4 - k), 0, 1)
    further = value[:, None] * (1 - saturation[:, None] * ramp)
    palette = np.concatenate([base, np.asarray(np.rint(further * 255), np.uint8)])[:classes]
    palette.setflags(write=False)
    return palette


def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of one class in the default palette, red, green, blue; from id 1024 on the colours repeat."""
    colours = _colours()
    return colours[number % len(colours)]


@cache
def _colours() -> list[tuple[int, int, int]]:
    return [(int(red), int(green), int(blue)) for red, green, blue in default_palette(1024)]
