"""Whether two texts tell one coordinate system, and where they differ."""

from __future__ import annotations

import re

from vllm_mmout.errors import InputError
from vllm_mmout.raster.crs.text import proj_crs

_SHOWN = 60
"""Characters of a text that a message shows at once."""
_PART = re.compile(r"[A-Za-z_]\w*\[")
"""How a part of WKT begins."""


def same_system(one: str | None, other: str | None) -> bool:
    """Whether two texts tell one system, x before y; None is no system, and like no other.

    Texts that differ PROJ compares, where pyproj is installed.
    """
    if one is None or other is None or one == other:
        return one == other
    try:
        systems = proj_crs(one), proj_crs(other)
    except (ImportError, InputError):
        return False
    return bool(systems[0].equals(systems[1], ignore_axis_order=True))


def shown_beside(one: str, other: str) -> str:
    """A system as a message shows it beside another: its beginning, and the part where the two begin to differ."""
    one, other = (re.sub(r"\s+", " ", text) for text in (one, other))
    same = next((at for at, letters in enumerate(zip(one, other, strict=False)) if letters[0] != letters[1]), 0)
    if same < _SHOWN // 2:
        return one[:_SHOWN]
    start = max((part.start() for part in _PART.finditer(one, 0, same)), default=0)
    start = max(start, same - _SHOWN * 3 // 4)  # of long names only so much that the difference is seen
    return f"{one[: min(start, _SHOWN)]}...{one[start : start + _SHOWN]}"
