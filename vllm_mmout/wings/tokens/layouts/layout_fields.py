"""Define the fields of a token layout, and derive the position of each code in a frame from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple


class Slot(NamedTuple):
    """Position in a frame of codes. The code at this position has a token id from ``first`` to ``stop`` - 1.

    The code is an index into the codebook with the number ``codebook``.
    """

    codebook: int
    first: int
    stop: int

    @property
    def description(self) -> str:
        """Return a text for error messages, such as "a code of codebook 1 (4096 to 8191)"."""
        return f"a code of codebook {self.codebook} ({self.first} to {self.stop - 1})"


@dataclass(frozen=True, kw_only=True)
class LayoutFields:
    """Fields that describe how tokens encode pictures or sounds. The subclass `TokenLayout` checks the fields.

    The field ``order`` has one of four values. "flattened": frame by frame, with the codes of all codebooks of a frame
    together. "interleaved": also frame by frame, but each position in a frame has its own range of token ids.
    "delayed": frame by frame, with codebook k delayed by k frames, and ``pad`` in the gaps. "sequential": all codes of
    codebook 0, then all codes of codebook 1, and so on.

    If ``end`` is empty, a picture with a ``grid`` ends when the grid is full. Other pictures, and sounds, end at the
    latest before the next text token or ``begin`` marker. Text inside a sound (``text_inside``) does not end it.

    Whether or not ``opened`` is set, an answer may begin with text, which is read as text. Codes in a prompt are not
    decoded.
    """

    modality: Literal["image", "audio"]
    """Kind of media that the tokens encode: "image" or "audio"."""
    first: int | tuple[int, ...]
    """Token id of code 0: one id for each position in a frame, or a single id.

    A single id is used for all positions. In the order "interleaved", a single id is used only for the first position,
    and the ids of each further position begin after the ids of the previous position."""
    size: int | tuple[int, ...]
    """Number of codes in a codebook: one number for all codebooks, or one number per codebook."""
    codebooks: int = 1
    """Number of codebooks."""
    order: Literal["flattened", "interleaved", "delayed", "sequential"] = "flattened"
    """Order of the codes in the model's output. The docstring of `LayoutFields` explains the four orders."""
    pattern: tuple[int, ...] | None = None
    """Codebook of each position in a frame, such as (0, 1, 2, 2, 1, 2, 2) for SNAC. None means that position k uses
    codebook k. May be set only for the order "interleaved"."""
    pad: int | None = None
    """Token id at positions without a code. Only the order "delayed" has such positions."""
    grid: tuple[int, int] | None = None
    """Number of rows and columns of codes in an image. None for sounds, or if the size of images varies.

    An image layout without a grid must have ``row_end``."""
    row_end: int | None = None
    """Token id that follows each row of an image, including the last row."""
    begin: tuple[int, ...] = ()
    """Token ids of the marker before each picture or sound. Without a marker, the first code begins a picture or
    sound."""
    end: tuple[int, ...] = ()
    """Token ids of the marker after each picture or sound. Empty if the model writes no such marker."""
    opened: bool = False
    """Whether every prompt ends inside a picture or sound, which the answer then continues.

    If False, the answer continues a picture or sound only after a prompt whose last tokens are the ``begin`` marker."""
    text_inside: bool = False
    """Whether text tokens may come between the codes of a sound, as in the answers of OuteTTS.

    The text tokens also belong to the answer's text."""

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Return the positions in a frame. Each position has a codebook and a range of token ids.

        A frame is a time step of a sound, or a cell of an image. For the orders "delayed" and "sequential", a frame has
        one position per codebook.
        """
        books = self.pattern or tuple(range(self.codebooks))
        sizes = (self.size,) * self.codebooks if isinstance(self.size, int) else self.size
        if not isinstance(self.first, int):
            firsts: Sequence[int] = self.first
        elif self.order == "interleaved":
            firsts = tuple(accumulate((sizes[book] for book in books[:-1]), initial=self.first))
        else:
            firsts = (self.first,) * len(books)
        return tuple(Slot(book, first, first + sizes[book]) for book, first in zip(books, firsts, strict=True))
