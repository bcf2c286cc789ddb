"""Colours of classes: the default ones, and the palettes that users give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.colours import default_palette

__all__ = ["PaletteOption", "default_palette", "parse_palette"]

PaletteOption: TypeAlias = Sequence[str | Sequence[int]]
"""A palette as users write it: per class ``"#rrggbb"`` or three integers 0..255."""

_SAMPLES = 3


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
