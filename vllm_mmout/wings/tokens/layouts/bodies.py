"""Collect the codes of one picture or sound from tokens that come frame by frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


class Fit(NamedTuple):
    """Range of token ids, ``first`` to ``stop`` - 1, that may come next in a picture or sound."""

    first: int
    stop: int
    after: int
    """Minimum number of tokens that must follow a token of this `Fit` to complete the picture or sound."""


class Body(ABC):
    """Base class that collects the tokens of one picture or sound between its begin and end markers."""

    over: bool
    """Whether the picture or sound is complete and accepts no further token. Always False while its size is unknown."""

    def __init__(self, layout: TokenLayout) -> None:
        self.over = False
        self._slots = layout.slots
        self._books = len(layout.slots)
        self._grid = layout.grid
        self._frame_count = layout.grid and layout.grid[0] * layout.grid[1]
        self._image = layout.modality == "image"
        self._tokens = array("q")  # codes and padding, without row ends

    @abstractmethod
    def take(self, token: int) -> bool:
        """Collect a token if it may come next. Return whether it was accepted."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """Return a description of the tokens that may come next, for error messages."""

    @property
    @abstractmethod
    def fits(self) -> list[Fit]:
        """Return the ranges of token ids that fit as the next token. Return an empty list if no token fits."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Return whether the picture or sound may end after the tokens so far."""

    @property
    def least(self) -> int:
        """Return the minimum number of further tokens before the picture or sound may end."""
        return 0 if self.may_end else 1 + min(fit.after for fit in self.fits)

    @property
    def has_all_codes(self) -> bool:
        """Return whether all codes of the picture or sound are collected. Row-end tokens may still follow."""
        return self.over

    @property
    def whole(self) -> bool:
        """Return whether the last row of the picture, or the last frame of the sound, is complete."""
        return self.may_end

    @property
    def columns(self) -> int | None:
        """Return the number of columns of codes in the picture, or None if the number is not known yet."""
        return self._grid and self._grid[1]

    def codes(self) -> tuple[NDArray[np.int64], ...]:
        """Return the codes of all complete rows or frames, one int64 array per codebook.

        The arrays are [rows, columns] for an image, and [n_k] for a sound.
        """
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
        """Return the number of complete rows of a picture, or of complete frames of a sound."""
        return len(self._frames()) // ((self.columns or len(self._tokens) + 1) if self._image else 1)

    @abstractmethod
    def _frames(self) -> NDArray[np.int64]:
        """Return the token ids of all complete frames, as an array [frames, positions in a frame]."""


def tokens_as_array(tokens: array[int], shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the first tokens as an int64 array of the given shape. Tokens that do not fit are left out."""
    return np.array(tokens[: shape[0] * shape[1]], np.int64).reshape(shape)


class FramesBody(Body):
    """Collector of codes that come frame by frame.

    It is used for the orders "flattened" and "interleaved", and for all layouts with a single codebook.
    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._ranges = cycle([(slot.first, slot.stop) for slot in self._slots])
        self._range = next(self._ranges)
        self._row_end = layout.row_end
        self._rows_ended = 0
        self._row: int | None = None  # codes in a row, once known
        self._all: int | None = None  # codes in the whole image, or None without a grid
        if layout.grid:
            rows, columns = layout.grid
            self._row = columns * len(self._slots)
            self._all = rows * self._row
        self._limit = self._row if self._row_end is not None else self._all
        """Number of codes after which the picture is complete or a row-end token must follow. None if unknown."""

    def take(self, token: int) -> bool:
        """Collect a code or a row-end token if it may come next. Return whether it was accepted."""
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
        """Return a description of the tokens that may come next, for error messages."""
        if self._row_ends_here:
            return f"the end of row {self._rows_ended} (token {self._row_end})"
        slot = len(self._tokens) % len(self._slots)
        description = f"{self._slots[slot].description} in {self._where}"
        if self._row_end is not None and self._row is None and self._tokens and not slot:
            description += f", or the end of row 0 (token {self._row_end})"
        return description

    @property
    def fits(self) -> list[Fit]:
        """Return the ranges of token ids that fit as the next token. Return an empty list if no token fits."""
        if self.over:
            return []
        taken = len(self._tokens)
        fits = []
        if taken != self._limit:
            fits.append(Fit(*self._range, self._tokens_left(taken + 1, self._rows_ended)))
        first_row_may_end = self._row is None and taken and not taken % len(self._slots)
        if self._row_end is not None and (first_row_may_end or self._row_ends_here):
            after = self._tokens_left(taken, self._rows_ended + 1) if self._row is not None else 0
            fits.append(Fit(self._row_end, self._row_end + 1, after))
        return fits

    @property
    def may_end(self) -> bool:
        """Return whether the picture or sound may end after the tokens so far."""
        if self._all is not None:
            return self.over
        if self._row_end is not None:
            return self._row is not None and len(self._tokens) == self._rows_ended * self._row
        return self.whole

    @property
    def has_all_codes(self) -> bool:
        """Return whether all codes of the picture or sound are collected. Row-end tokens may still follow."""
        return len(self._tokens) == self._all

    @property
    def whole(self) -> bool:
        """Return whether the last row of the picture, or the last frame of the sound, is complete."""
        unit = self._row if self._image else len(self._slots)
        return bool(unit and self._tokens) and len(self._tokens) % (unit or 1) == 0

    @property
    def columns(self) -> int | None:
        """Return the number of columns of codes in the picture, or None if the number is not known yet."""
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

    def _tokens_left(self, taken: int, rows: int) -> int:
        """Return the minimum number of tokens still missing after ``taken`` codes and ``rows`` row-end tokens."""
        if self._all is not None:
            ends = self._all // (self._row or 1) - rows if self._row_end is not None else 0
            return self._all - taken + ends
        if self._row is not None:
            return 0 if taken == rows * self._row else (rows + 1) * self._row - taken + 1
        return -taken % len(self._slots) + (self._row_end is not None)

    def _end_row(self) -> bool:
        """End the current row of the picture if it is complete. Return whether it was complete."""
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
