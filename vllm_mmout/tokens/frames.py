"""FramesBody: frame after frame, in each a code of every slot."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from vllm_mmout.tokens.body import Body, tokens_as_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.tokens.layout import TokenLayout


class FramesBody(Body):
    """The orders "flattened" and "interleaved", and any order of one codebook.

    Args:
        layout: says which tokens fit.

    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._ranges = cycle([(slot.first, slot.stop) for slot in self._slots])
        self._range = next(self._ranges)
        self._row_end = layout.row_end
        self._rows_ended = 0
        self._row: int | None = None  # codes of a row, once known
        self._all: int | None = None  # codes of the whole
        if layout.grid:
            rows, columns = layout.grid
            self._row = columns * len(self._slots)
            self._all = rows * self._row
        self._limit = self._row if self._row_end is not None else self._all
        """As many codes as there may be before something else: the end of the row, or of the medium."""

    def take(self, token: int) -> bool:
        """Take a code where a code is due, or the end of a row where that is."""
        tokens = self._tokens
        first, stop = self._range
        if first <= token < stop and len(tokens) != self._limit:
            tokens.append(token)
            self._range = next(self._ranges)
            if len(tokens) == self._limit and self._row_end is None:
                self.over = True
            return True
        return token == self._row_end and self._end_row()

    @property
    def expected(self) -> str:
        """What fits here, in words."""
        if self._row_ends_here:
            return f"the end of row {self._rows_ended} (token {self._row_end})"
        place = len(self._tokens) % len(self._slots)
        said = f"{self._slots[place].said} in {self._where}"
        if self._row_end is not None and self._row is None and self._tokens and not place:
            said += f", or the end of row 0 (token {self._row_end})"
        return said

    @property
    def may_end(self) -> bool:
        """Whether an end marker fits here: after a frame, of an image after a row."""
        if self._all is not None:
            return self.over
        if self._row_end is not None:
            return self._row is not None and len(self._tokens) == self._rows_ended * self._row
        return self.whole

    @property
    def filled(self) -> bool:
        """Whether the last cell has come."""
        return len(self._tokens) == self._all

    @property
    def whole(self) -> bool:
        """Whether the last frame, or row, is whole."""
        unit = self._row if self._image else len(self._slots)
        return bool(unit and self._tokens) and len(self._tokens) % (unit or 1) == 0

    @property
    def columns(self) -> int | None:
        """Columns of an image; None as long as its first row has not ended."""
        return self._row and self._row // len(self._slots)

    @property
    def _row_ends_here(self) -> bool:
        return self._row is not None and self._row_end is not None and len(self._tokens) == self._limit

    @property
    def _where(self) -> str:
        frame = len(self._tokens) // len(self._slots)
        if not self._image:
            return f"frame {frame}"
        row, column = divmod(frame, self.columns) if self.columns else (0, frame)
        return f"row {row}, column {column}"

    def _end_row(self) -> bool:
        """End a row, if it may end here."""
        if self._row is None:
            if not self._tokens or len(self._tokens) % len(self._slots):
                return False
            self._row = self._limit = len(self._tokens)
        elif not self._row_ends_here:
            return False
        self._rows_ended += 1
        self._limit = (self._rows_ended + 1) * self._row
        self.over = len(self._tokens) == self._all
        return True

    def _frames(self) -> NDArray[np.int64]:
        slots = len(self._slots)
        return tokens_as_array(self._tokens, (len(self._tokens) // slots, slots))
