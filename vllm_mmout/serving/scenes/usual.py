"""Which bands of a raster are usually shown as red, green and blue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from vllm_mmout.raster.stack.band_names import folded

_WHOLE: Final = ({"red", "r", "b4"}, {"green", "g", "b3"}, {"blue", "b", "b2"})
"""Names of red, green and blue: B04, B03, B02 are those of Sentinel-2, Landsat 8 and 9, and HLS."""
_WORDS: Final = ("red", "green", "blue")
_NOT_IT: Final = {"edge", "coastal"}
"""Words that make it another colour: "red edge 1", "coastal blue"."""
_SPLIT: Final = re.compile(r"[\W_]+")


def usual(names: Sequence[str], *, coloured: bool) -> tuple[int, ...]:
    """The bands to show, counted from 1.

    Args:
        names: what each band is called, "" for one without a name.
        coloured: whether the first three are known to be red, green and blue.

    Returns:
        The bands called red, green and blue, where all three are there: by their whole name, in small or capital
        letters, else by a word in it. Else the first three of a picture in colour, or of three bands; of more, as they
        are mostly stored from blue on, the third, second and first; of fewer the first alone.

    """
    found = [_called(names, colour) for colour in range(3)]
    if None not in found:
        return tuple(place + 1 for place in found if place is not None)
    if coloured or len(names) == 3:
        return 1, 2, 3
    return (3, 2, 1) if len(names) > 3 else (1,)


def _called(names: Sequence[str], colour: int) -> int | None:
    """The first band that is called by a colour."""
    for place, name in enumerate(names):
        if folded(name.strip()) in _WHOLE[colour]:
            return place
    for place, name in enumerate(names):
        words = set(_SPLIT.split(name.casefold()))
        if _WORDS[colour] in words and not words & _NOT_IT:
            return place
    return None
