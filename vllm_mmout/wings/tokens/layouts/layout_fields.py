"""Define the fields of a token layout, and derive the position of each code in a frame from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple


class Slot(NamedTuple):
    """Position in a frame of codes. Codes there index ``codebook``. Their token ids are ``first`` to ``stop`` - 1."""

    codebook: int
    first: int
    stop: int

    @property
    def description(self) -> str:
        """Return a text for error messages, such as "a code of codebook 1 (4096 to 8191)"."""
        return f"a code of codebook {self.codebook} ({self.first} to {self.stop - 1})"


@dataclass(frozen=True, kw_only=True)
class LayoutFields:
    """Fields that describe how tokens encode pictures or sounds. The subclass `TokenLayout` checks them."""

    modality: Literal["image", "audio"]
    """Kind of media that the tokens encode: "image" or "audio"."""
    first: int | tuple[int, ...]
    """Token id of code 0: a tuple with one id per position in a frame, or one id for all positions. In the order
    "interleaved", a single id is for position 0 only. The ids of position 1 begin after the last id of position 0, and
    so on."""
    size: int | tuple[int, ...]
    """Number of codes in a codebook: one number for all codebooks, or one number per codebook."""
    codebooks: int = 1
    """Number of codebooks."""
    order: Literal["flattened", "interleaved", "delayed", "sequential"] = "flattened"
    """Order of the codes. "flattened": frame by frame, with the codes of all codebooks of a frame together.
    "interleaved": also frame by frame, but each position in a frame has its own range of token ids. "delayed": frame by
    frame, with codebook k delayed by k frames, and ``pad`` in the gaps. "sequential": all codes of codebook 0, then all
    of codebook 1, and so on."""
    pattern: tuple[int, ...] | None = None
    """Codebook of each position in a frame, such as (0, 1, 2, 2, 1, 2, 2) for SNAC. None means that position k uses
    codebook k. May be set only for the order "interleaved"."""
    pad: int | None = None
    """Token id at positions without a code. Only the order "delayed" has such positions."""
    grid: tuple[int, int] | None = None
    """Number of rows and columns of tokens in an image. None if a token ``row_end`` ends each row."""
    row_end: int | None = None
    """Token id that follows each row of an image, including the last row."""
    begin: tuple[int, ...] = ()
    """Token ids of the marker before each picture or sound. Without a marker, the first code begins a picture or
    sound."""
    end: tuple[int, ...] = ()
    """Token ids of the marker after each picture or sound. Without a marker, a picture ends when its grid is full, and
    a sound before the next token that is not a code."""
    opened: bool = False
    """Whether every prompt ends inside a picture or sound, which the answer then continues. If False, a prompt does so
    only if it ends with the tokens ``begin``.

    In both cases, the answer may begin with text instead, which is read as text. Codes in the prompt are not
    decoded."""
    text_inside: bool = False
    """Whether text may come between the codes of a sound, such as the words of OuteTTS. This text also belongs to the
    answer's text. Without ``end``, such a sound lasts until the next ``begin`` or the end of the answer."""

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Return the positions of a frame of sound. Each position has a codebook and a range of token ids.

        For the orders "delayed" and "sequential", a frame has one position per codebook.
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
