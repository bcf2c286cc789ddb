"""Bands by number or description."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def band_places(bands: Sequence[int | str], descriptions: Sequence[str | None]) -> list[int]:
    """The indices, from 0, of bands in the order asked; a band may repeat.

    Args:
        bands: numbers from 1, or descriptions.
        descriptions: that of each band of the raster, None for a band without.

    Raises:
        InputError: a band does not exist, or two bands have the description asked for.

    """
    if not len(bands):
        raise InputError("bands is empty; name at least one band")
    return [_place(band, descriptions) for band in bands]


def _place(band: int | str, descriptions: Sequence[str | None]) -> int:
    if isinstance(band, str):
        places = [place for place, description in enumerate(descriptions) if description == band]
        if len(places) == 1:
            return places[0]
        problem = f"is the description of {len(places)} bands" if places else "does not exist"
        raise InputError(f"band {band!r} {problem}; the raster has {_listing(descriptions)}")
    if isinstance(band, bool) or not isinstance(band, int | np.integer):
        raise InputError(f"a band must be a number from 1 or a description, got {band!r}")
    if not 1 <= band <= len(descriptions):
        listing = _listing(descriptions)
        raise InputError(f"band {band} does not exist (bands count from 1); the raster has {listing}")
    return int(band) - 1


def _listing(descriptions: Sequence[str | None]) -> str:
    named = [f"{number} {name!r}" for number, name in enumerate(descriptions, start=1) if name]
    count = f"{len(descriptions)} band{'s' if len(descriptions) > 1 else ''}"
    return f"{count}: {', '.join(named)}" if named else f"{count} without descriptions"
