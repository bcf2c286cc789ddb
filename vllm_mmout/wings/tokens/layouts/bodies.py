"""Bodies: the codes of one medium while they come, without its markers; here of orders that go frame by frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


class Fit(NamedTuple):
    """Tokens that fit next: the ids ``first`` to ``stop`` - 1."""

    first: int
    stop: int
    after: int
    """The fewest tokens with which what has begun can be whole after one of these."""


class Body(ABC):
    """Takes the tokens between two markers one by one; each order of codes has one."""

    over: bool
    """Whether no further token can fit: the medium has all that its grid, or its own codes, say that it has."""

    def __init__(self, layout: TokenLayout) -> None:
        self.over = False
        self._slots = layout.slots
        self._books = len(layout.slots)
        self._grid = layout.grid
        self._frame_count = layout.grid and layout.grid[0] * layout.grid[1]
        self._image = layout.modality == "image"
        self._tokens = array("q")  # codes, and padding where the order has it; no row ends

    @abstractmethod
    def take(self, token: int) -> bool:
        """Take a token if it fits here, and say whether it did."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What fits here, in words."""

    @property
    @abstractmethod
    def fits(self) -> list[Fit]:
        """What `take` takes next; none where the body is ``over``."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Whether an end marker fits here."""

    @property
    def least(self) -> int:
        """The fewest tokens with which it may end."""
        return 0 if self.may_end else 1 + min(fit.after for fit in self.fits)

    @property
    def filled(self) -> bool:
        """Whether the last code has come, so that only row ends and markers can follow."""
        return self.over

    @property
    def whole(self) -> bool:
        """Whether all rows or frames that have begun are whole, for a medium that says nowhere how many it has."""
        return self.may_end

    @property
    def columns(self) -> int | None:
        """Columns of an image; None as long as they are not known."""
        return self._grid and self._grid[1]

    def codes(self) -> tuple[NDArray[np.int64], ...]:
        """The codes of all whole rows or frames, a codebook each: of an image [rows, columns], of a sound [n_k]."""
        frames = self._frames()
        if self._image:
            columns = self.columns or 0
            frames = frames[: len(frames) // columns * columns] if columns else frames[:0]
        books = []
        for book in range(max(slot.codebook for slot in self._slots) + 1):
            places = [place for place, slot in enumerate(self._slots) if slot.codebook == book]
            codes = frames[:, places] - np.array([self._slots[place].first for place in places])
            books.append(codes.reshape((-1, columns or 1) if self._image else -1))
        return tuple(books)

    @property
    def ready(self) -> int:
        """How many rows of an image, or frames of a sound, are whole."""
        return len(self._frames()) // ((self.columns or len(self._tokens) + 1) if self._image else 1)

    @abstractmethod
    def _frames(self) -> NDArray[np.int64]:
        """The tokens of all whole frames: [frames, slots]."""


def tokens_as_array(tokens: array[int], shape: tuple[int, int]) -> NDArray[np.int64]:
    """The first tokens as an array of a shape."""
    return np.array(tokens[: shape[0] * shape[1]], np.int64).reshape(shape)


class FramesBody(Body):
    """The orders "flattened" and "interleaved", and any order of one codebook."""

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
            self.over = self._row_end is None and len(tokens) == self._limit
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
    def fits(self) -> list[Fit]:
        """See `Body.fits`."""
        if self.over:
            return []
        taken = len(self._tokens)
        found = []
        if taken != self._limit:
            found.append(Fit(*self._range, self._rest(taken + 1, self._rows_ended)))
        begun = self._row is None and taken and not taken % len(self._slots)
        if self._row_end is not None and (begun or self._row_ends_here):
            after = self._rest(taken, self._rows_ended + 1) if self._row is not None else 0
            found.append(Fit(self._row_end, self._row_end + 1, after))
        return found

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

    def _rest(self, taken: int, rows: int) -> int:
        """The fewest tokens that make it whole after so many codes and row ends."""
        if self._all is not None:
            ends = self._all // (self._row or 1) - rows if self._row_end is not None else 0
            return self._all - taken + ends
        if self._row is not None:
            return 0 if taken == rows * self._row else (rows + 1) * self._row - taken + 1
        return -taken % len(self._slots) + (self._row_end is not None)

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
