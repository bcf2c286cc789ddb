"""Colours of classes: a default that colour-blind readers can tell apart, and the palettes that users give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError

PaletteOption: TypeAlias = Sequence[str | Sequence[int]]
"""A palette as users write it: per class ``"#rrggbb"`` or three integers 0..255."""

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
_SAMPLES = 3


def default_palette(classes: int) -> NDArray[np.uint8]:
    """Colours for class ids from 0, always the same: eight of Okabe and Ito, then hues a golden angle apart.

    A longer palette begins with the shorter one, so that a class keeps its colour.

    Args:
        classes: how many colours.

    Returns:
        uint8 [classes, 3], red, green, blue.

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
    return np.concatenate([base, np.asarray(np.rint(further * 255), np.uint8)])[:classes]


def parse_palette(palette: object) -> NDArray[np.uint8]:
    """The colours of a palette that a user or a config gives.

    Args:
        palette: a `PaletteOption`, or an integer array [classes, 3].

    Returns:
        uint8 [classes, 3], red, green, blue.

    Raises:
        OptionError: the palette is empty or a colour is not understood.

    """
    if not isinstance(palette, list | tuple | np.ndarray) or not len(palette):
        raise OptionError(f"palette must be a list of colours, one a class, got {palette!r}")
    return np.array([_parse_colour(colour, place) for place, colour in enumerate(palette)], np.uint8)


def _parse_colour(colour: object, place: int) -> tuple[int, ...]:
    """One colour as red, green, blue."""
    if isinstance(colour, str) and re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
        return tuple(bytes.fromhex(colour[1:]))
    if isinstance(colour, list | tuple | np.ndarray):
        samples = tuple(int(sample) for sample in colour if _is_byte(sample))
        if len(samples) == len(colour) == _SAMPLES:
            return samples
    raise OptionError(f'palette[{place}] must be "#rrggbb" or three integers from 0 to 255, got {colour!r}')


def _is_byte(sample: object) -> bool:
    """Whether a sample of a colour is an integer from 0 to 255."""
    return isinstance(sample, int | np.integer) and not isinstance(sample, bool) and int(sample) in range(256)
