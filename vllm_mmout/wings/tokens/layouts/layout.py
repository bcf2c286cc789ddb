"""TokenLayout: which token ids are codes of a picture or a sound, and in which order they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vllm_mmout.errors import OptionError, TokenError
from vllm_mmout.wings.tokens.layouts.validation import check, checked_names, checked_types


class Slot(NamedTuple):
    """A place of a frame: the token ids ``first`` to ``stop`` - 1 are the codes of a codebook there."""

    codebook: int
    first: int
    stop: int

    @property
    def said(self) -> str:
        """What may stand here, in words."""
        return f"a code of codebook {self.codebook} ({self.first} to {self.stop - 1})"


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """How a model writes pictures or sounds as tokens.

    A frame is a step of a sound, or a cell of an image; the cells of an image follow row by row. Each frame has a
    code of each codebook, in slots. Names of orders are those of MusicGen, https://arxiv.org/abs/2306.05284, where it
    has them.

    Raises:
        OptionError: a field has a wrong type, or the fields contradict one another.

    """

    modality: Literal["image", "audio"]
    """What the tokens are."""
    first: int | tuple[int, ...]
    """The token id of code 0: one for all slots, or one a slot. One alone is shared by all codebooks, so that only the
    place tells which codebook a token is of; but where ``order`` is "interleaved", slot i begins at ``first`` + the
    sizes of the slots before it."""
    size: int | tuple[int, ...]
    """How many codes a codebook has: one number for all, or one a codebook."""
    codebooks: int = 1
    """How many codebooks there are."""
    order: Literal["flattened", "interleaved", "delayed", "sequential"] = "flattened"
    """flattened: frame by frame, in each the codebooks 0, 1, ...; interleaved: the same, but each slot has ids of its
    own; delayed: step t has for codebook k the code of frame t - k, or ``pad``, so that F frames are F + K - 1 steps;
    sequential: all codes of codebook 0, then all of codebook 1, ..."""
    pattern: tuple[int, ...] | None = None
    """interleaved: the codebook of each slot of a frame, such as SNAC's (0, 1, 2, 2, 1, 2, 2); None: 0, 1, ..."""
    pad: int | None = None
    """delayed: the token where there is no code."""
    grid: tuple[int, int] | None = None
    """Rows and columns of an image; None: as ``row_end`` says."""
    row_end: int | None = None
    """The token after each row of an image, the last included."""
    begin: tuple[int, ...] = ()
    """The tokens before a medium; none: it begins with its first code."""
    end: tuple[int, ...] = ()
    """The tokens after a medium; none: it ends with the last cell of its grid, or before the first token that is no
    code."""
    opened: bool = False
    """Whether each prompt ends with ``begin``, or with whole frames after it: the output begins inside a medium, of
    which what the prompt has is no part, but where it begins with text. A prompt that ends with ``begin`` has the same
    effect where this is not set."""
    text_inside: bool = False
    """Whether text may stand among the codes of a sound, such as OuteTTS' words: it is text as elsewhere, and the sound
    goes on after it. Without ``end`` the sound then goes on to the end of the answer, or to the next ``begin``."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        checked_types(self)
        check(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TokenLayout:
        """Make a layout of what a ``config.json`` or an engine argument says.

        Args:
            mapping: field names to values; lists stand for tuples.

        Raises:
            OptionError: a field is unknown (the known ones are listed), missing or wrong.

        """
        checked_names(mapping, cls)
        return cls(**mapping)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of a frame; where the order is "delayed" or "sequential", one a codebook."""
        books = self.pattern or tuple(range(self.codebooks))
        sizes = (self.size,) * self.codebooks if isinstance(self.size, int) else self.size
        if not isinstance(self.first, int):
            firsts: Sequence[int] = self.first
        elif self.order == "interleaved":
            firsts = tuple(accumulate((sizes[book] for book in books[:-1]), initial=self.first))
        else:
            firsts = (self.first,) * len(books)
        return tuple(Slot(book, first, first + sizes[book]) for book, first in zip(books, firsts, strict=True))

    @cached_property
    def token_ids(self) -> frozenset[int]:
        """All token ids that are media: codes, padding, row ends and markers."""
        single = {token for token in (self.pad, self.row_end) if token is not None}
        codes = (range(first, stop) for first, stop in {(slot.first, slot.stop) for slot in self.slots})
        return frozenset(chain(single, self.begin, self.end, *codes))

    def opened_by(self, prompt: Sequence[int]) -> bool:
        """Whether the answer to a prompt begins inside a medium: ``opened``, or since that ends with ``begin``."""
        return self.opened or self.ends_with_begin(prompt)

    def ends_with_begin(self, tokens: Sequence[int]) -> bool:
        """Whether tokens end with the ``begin`` of a medium; never without such a marker."""
        return bool(self.begin) and tuple(tokens[-len(self.begin) :]) == self.begin

    @property
    def delay(self) -> int:
        """Steps that a medium has more than frames."""
        return self.codebooks - 1 if self.order == "delayed" else 0

    def tokens_of(self, rows: int, columns: int, *, opened: bool = False) -> int:
        """How many tokens an image takes with its markers.

        Args:
            rows: rows of cells, 1 or more.
            columns: columns of cells, 1 or more.
            opened: whether the prompt has the begin marker.

        Raises:
            OptionError: the layout is of audio, or of images of another grid, or there are no cells.

        """
        if self.modality != "image":
            raise OptionError(f'tokens_of is for images, this layout is of "{self.modality}"; use tokens_of_frames')
        if min(rows, columns) < 1 or self.grid not in (None, (rows, columns)):
            raise OptionError(
                f"an image of this layout has {_said(self.grid)}, got {rows} rows and {columns} columns;"
                " ask for that grid, or set grid"
            )
        row_ends = 0 if self.row_end is None else rows
        return self._tokens(rows * columns, opened=opened) + row_ends

    def tokens_of_frames(self, frames: int, *, opened: bool = False) -> int:
        """How many tokens a sound takes with its markers, and without text inside it.

        Args:
            frames: frames of codes, 1 or more.
            opened: whether the prompt has the begin marker.

        Raises:
            OptionError: the layout is of images, or there are no frames.

        """
        if self.modality != "audio":
            raise OptionError(f'tokens_of_frames is for audio, this layout is of "{self.modality}"; use tokens_of')
        if frames < 1:
            raise OptionError(f"frames must be 1 or more, got {frames}")
        return self._tokens(frames, opened=opened)

    def build(self, codes: Sequence[ArrayLike], *, opened: bool = False) -> list[int]:
        """Write the codes of one medium as tokens, with its markers.

        Args:
            codes: integers, one array a codebook: of an image [rows, columns], of a sound [n_k].
            opened: whether the prompt has the begin marker, which is then left out.

        Returns:
            The token ids.

        Raises:
            TokenError: the codes do not fit: their shapes, their number, or a code that the codebook has not.

        """
        books = _checked(self, codes)
        frames = _frames(self, books)  # token ids, [frames, slots]
        if self.order == "sequential":
            tokens = frames.T.ravel()
        elif self.order == "delayed":
            tokens = _delayed(self, frames).ravel()
        elif self.row_end is not None:
            rows = frames.reshape(len(books[0]), -1)
            ends = np.full((len(rows), 1), self.row_end)
            tokens = np.concatenate((rows, ends), axis=1).ravel()
        else:
            tokens = frames.ravel()
        inside: list[int] = tokens.tolist()
        return [*(() if opened else self.begin), *inside, *self.end]

    def _tokens(self, frames: int, *, opened: bool) -> int:
        markers = len(self.end) + (0 if opened else len(self.begin))
        return (frames + self.delay) * len(self.slots) + markers


def _said(grid: tuple[int, int] | None) -> str:
    return "1 row and 1 column or more" if grid is None else f"{grid[0]} rows and {grid[1]} columns"


def _frames(layout: TokenLayout, books: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The token ids of each frame: [frames, slots]."""
    order = [slot.codebook for slot in layout.slots]
    rates = [order.count(book) for book in range(layout.codebooks)]
    counts = {divmod(codes.size, rate) for codes, rate in zip(books, rates, strict=True)}
    (frames, rest), *others = counts
    if others or rest:
        sizes = [codes.size for codes in books]
        raise TokenError(f"codes of {rates} a frame must be of one number of whole frames, got {sizes} codes")
    by_frame = [codes.reshape(frames, rate) for codes, rate in zip(books, rates, strict=True)]
    columns = [
        by_frame[slot.codebook][:, order[:place].count(slot.codebook)] + slot.first
        for place, slot in enumerate(layout.slots)
    ]
    return np.stack(columns, axis=1)


def _delayed(layout: TokenLayout, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each codebook one step later than the one before it: [frames + codebooks - 1, codebooks]."""
    count, books = frames.shape
    steps = np.full((count + layout.delay, books), layout.pad, np.int64)
    for book in range(books):
        steps[book : book + count, book] = frames[:, book]
    return steps


def _checked(layout: TokenLayout, codes: Sequence[ArrayLike]) -> list[NDArray[np.int64]]:
    """The codes as int64 arrays."""
    arrays = [np.asarray(book) for book in codes]
    shapes = [list(array.shape) for array in arrays]
    if len(arrays) != layout.codebooks:
        raise TokenError(f"codes must be one array a codebook, {layout.codebooks} in all, got {len(arrays)}")
    image = layout.modality == "image"
    if any(array.ndim != (2 if image else 1) or array.size == 0 for array in arrays):
        raise TokenError(f"codes must be {'[rows, columns]' if image else '[n]'} and not empty, got {shapes}")
    if image and any(array.shape != (layout.grid or arrays[0].shape) for array in arrays):
        expected = list(layout.grid) if layout.grid else "one shape"
        raise TokenError(f"codes must be of {expected} [rows, columns] in each codebook, got {shapes}")
    sizes = {slot.codebook: slot.stop - slot.first for slot in layout.slots}
    for book, array in enumerate(arrays):
        if array.dtype.kind not in "iu":
            raise TokenError(f"codes must be integers, got {array.dtype} for codebook {book}")
        if array.min() < 0 or array.max() >= sizes[book]:
            raise TokenError(
                f"codes of codebook {book} must be 0 to {sizes[book] - 1}, got {array.min()} to {array.max()}"
            )
    return [array.astype(np.int64) for array in arrays]
