"""Window: a rectangle of a raster."""

from __future__ import annotations

from dataclasses import dataclass


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
