"""Bodies: the codes of one medium while they come, without its markers; one for each order of codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


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
    def may_end(self) -> bool:
        """Whether an end marker fits here."""

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


class DelayedBody(Body):
    """The order "delayed": step t has for codebook k the code of frame t - k, or padding.

    See MusicGen, https://arxiv.org/abs/2306.05284, figure 1. The first padding of codebook 0 tells how many frames
    there are, where no grid does.
    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._pad = layout.pad

    def take(self, token: int) -> bool:
        """Take a code or padding where it is due."""
        step, book = divmod(len(self._tokens), self._books)
        slot = self._slots[book]
        if self._pads(step, book):
            fits = token == self._pad
        elif token == self._pad and self._may_stop(step, book):
            self._frame_count = step
            fits = True
        else:
            fits = slot.first <= token < slot.stop
        if fits:
            self._tokens.append(token)
            if self._frame_count is not None:
                self.over = len(self._tokens) == (self._frame_count + self._books - 1) * self._books
        return fits

    @property
    def expected(self) -> str:
        """What fits here, in words."""
        step, book = divmod(len(self._tokens), self._books)
        pad = f"padding (token {self._pad})"
        if self._pads(step, book):
            return f"{pad} for codebook {book} in step {step}"
        return f"{self._slots[book].said} in step {step}" + (f", or {pad}" if self._may_stop(step, book) else "")

    @property
    def may_end(self) -> bool:
        """Whether an end marker fits here: when the last codebook has its last code."""
        return self.over

    def _pads(self, step: int, book: int) -> bool:
        """Whether nothing but padding fits."""
        frame = step - book
        return frame < 0 or (self._frame_count is not None and frame >= self._frame_count)

    def _may_stop(self, step: int, book: int) -> bool:
        """Whether padding would say that all frames have begun."""
        return book == 0 and step > 0 and self._frame_count is None

    def _frames(self) -> NDArray[np.int64]:
        whole = max(0, len(self._tokens) // self._books - (self._books - 1))
        steps = tokens_as_array(self._tokens, (len(self._tokens) // self._books, self._books))
        columns = [steps[book : book + whole, book] for book in range(self._books)]
        return np.stack(columns, axis=1)


class SequentialBody(Body):
    """The order "sequential": as many codes of each codebook.

    How many there are is said by the grid, or where each codebook has token ids of its own, by the first code of
    codebook 1; otherwise the end tells.
    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._apart = not isinstance(layout.first, int)

    def take(self, token: int) -> bool:
        """Take a code of the codebook that is due."""
        taken = len(self._tokens)
        if self._next_book_may_begin and self._slots[1].first <= token < self._slots[1].stop:
            self._frame_count = taken
        slot = self._slots[taken // self._frame_count if self._frame_count else 0]
        if not slot.first <= token < slot.stop:
            return False
        self._tokens.append(token)
        if self._frame_count is not None:
            self.over = taken + 1 == self._frame_count * self._books
        return True

    @property
    def expected(self) -> str:
        """What fits here, in words."""
        taken, count = len(self._tokens), self._frame_count
        book, frame = divmod(taken, count) if count else (0, taken)
        if self._frame_count is None and not self._apart:
            slot = self._slots[0]
            return f"a code ({slot.first} to {slot.stop - 1})"
        said = f"{self._slots[book].said} in frame {frame}"
        return f"{said}, or {self._slots[1].said}" if self._next_book_may_begin else said

    @property
    def may_end(self) -> bool:
        """Whether an end marker fits here: after as many codes of each codebook."""
        if self._frame_count is None and not self._apart:
            return bool(self._tokens) and len(self._tokens) % self._books == 0
        return self.over

    @property
    def _next_book_may_begin(self) -> bool:
        return self._frame_count is None and self._apart and bool(self._tokens)

    def _frames(self) -> NDArray[np.int64]:
        """The tokens of the frames of which the last codebook has come: [frames, codebooks]."""
        taken = len(self._tokens)
        if self._frame_count is None:
            count = taken // self._books if self.may_end else 0
            whole = count
        else:
            count = self._frame_count
            whole = max(0, taken - (self._books - 1) * count)
        tokens = self._tokens[:]
        tokens.extend([0] * (count * self._books - taken))
        return tokens_as_array(tokens, (self._books, count)).T[:whole]
