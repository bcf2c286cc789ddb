"""Window: a rectangle of a raster."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_mmout.errors import InputError

_SIDES = ("row", "col", "height", "width")


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of the input, in pixels."""

    row: int
    """First row, from the top, from 0."""
    col: int
    """First column, from the left, from 0."""
    height: int
    width: int

    @property
    def rows(self) -> slice:
        """The rows, to index an array with."""
        return slice(self.row, self.row + self.height)

    @property
    def cols(self) -> slice:
        """The columns, to index an array with."""
        return slice(self.col, self.col + self.width)

    def within(self, size: tuple[int, int]) -> bool:
        """Whether the rectangle has pixels, all of them of a raster of (height, width)."""
        inside = self.row + self.height <= size[0] and self.col + self.width <= size[1]
        return inside and min(self.row, self.col) >= 0 and min(self.height, self.width) >= 1

    def __str__(self) -> str:
        last_row, last_col = self.row + self.height - 1, self.col + self.width - 1
        return f"rows {self.row} to {last_row}, columns {self.col} to {last_col}"


def as_window(given: Any) -> Window:
    """A window of what a user gives: a `Window` or anything with its attributes, four integers, or a table of them.

    Raises:
        InputError: it is nothing of these.

    """
    try:
        if isinstance(given, Mapping):
            values = {**given}
        elif hasattr(given, "row") and hasattr(given, "col"):
            values = {side: getattr(given, side) for side in _SIDES}
        else:
            values = dict(zip(_SIDES, given, strict=True))
        return Window(**{side: operator.index(value) for side, value in values.items()})
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"window must be (row, col, height, width), four integers, got {given!r}") from None
