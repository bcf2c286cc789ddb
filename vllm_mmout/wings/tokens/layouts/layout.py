"""Define the token ids that encode a picture or sound in a model's output, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vllm_mmout.errors import OptionError, TokenError
from vllm_mmout.wings.tokens.layouts.layout_fields import LayoutFields
from vllm_mmout.wings.tokens.layouts.validation import check, checked_names, checked_types


@dataclass(frozen=True, kw_only=True)
class TokenLayout(LayoutFields):
    """Description of the tokens that encode pictures or sounds in a model's output: their ids and their order.

    A frame is a time step of a sound, or a cell of an image. The cells of an image follow row by row. Each
    position (slot) in a frame holds a code of one codebook. Orders have the names that MusicGen defines,
    https://arxiv.org/abs/2306.05284, if any.

    Raises:
        OptionError: a field has a wrong type, or the fields contradict one another.

    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        checked_types(self)
        check(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TokenLayout:
        """Create a layout from a mapping of field names to values, for example from ``config.json``.

        Args:
            mapping: field names and their values. Lists are accepted in place of tuples.

        Raises:
            OptionError: a field is unknown (the message lists the known fields), missing or wrong.

        """
        checked_names(mapping, cls)
        return cls(**mapping)

    @cached_property
    def token_ids(self) -> frozenset[int]:
        """Return the ids of all tokens that belong to pictures or sounds: codes, padding, row ends and markers."""
        single = {token for token in (self.pad, self.row_end) if token is not None}
        codes = (range(first, stop) for first, stop in {(slot.first, slot.stop) for slot in self.slots})
        return frozenset(chain(single, self.begin, self.end, *codes))

    def opened_by(self, prompt: Sequence[int]) -> bool:
        """Return whether the prompt ends inside a picture or sound, which the model's answer then continues."""
        return self.opened or self.ends_with_begin(prompt)

    def ends_with_begin(self, tokens: Sequence[int]) -> bool:
        """Return whether ``tokens`` end with the ``begin`` marker. Always False for a layout without this marker."""
        return bool(self.begin) and tuple(tokens[-len(self.begin) :]) == self.begin

    @property
    def delay(self) -> int:
        """Return how many extra frames the order "delayed" needs, because codebook k begins k frames late.

        It is 0 for other orders.
        """
        return self.codebooks - 1 if self.order == "delayed" else 0

    def tokens_of(self, rows: int, columns: int, *, opened: bool = False) -> int:
        """Return the number of tokens of an image with ``rows`` x ``columns`` cells. Count markers and row ends too.

        Args:
            rows: rows of cells, 1 or more.
            columns: columns of cells, 1 or more.
            opened: whether the prompt has the begin marker, which is then not counted.

        Raises:
            OptionError: the layout is for audio or for images of another grid, or the image has no cells.

        """
        if self.modality != "image":
            raise OptionError(f"tokens_of is for images, but this layout is for {self.modality}; use tokens_of_frames")
        if min(rows, columns) < 1 or self.grid not in (None, (rows, columns)):
            raise OptionError(
                f"an image of this layout has {_said(self.grid)}, got {rows} rows and {columns} columns;"
                " ask for that grid, or set grid"
            )
        row_ends = 0 if self.row_end is None else rows
        return self._tokens(rows * columns, opened=opened) + row_ends

    def tokens_of_frames(self, frames: int, *, opened: bool = False) -> int:
        """Return the number of tokens of a sound with ``frames`` frames. Count the begin and end markers too.

        Args:
            frames: frames of codes, 1 or more.
            opened: whether the prompt has the begin marker, which is then not counted.

        Raises:
            OptionError: the layout is for images, or the sound has no frames.

        """
        if self.modality != "audio":
            raise OptionError(f"tokens_of_frames is for audio, but this layout is for {self.modality}; use tokens_of")
        if frames < 1:
            raise OptionError(f"frames must be 1 or more, got {frames}")
        return self._tokens(frames, opened=opened)

    def build(self, codes: Sequence[ArrayLike], *, opened: bool = False) -> list[int]:
        """Build the tokens of one picture or sound from its codes. Add the tokens of the begin and end markers.

        Args:
            codes: integers, one array per codebook: [rows, columns] for an image, [n_k] for a sound.
            opened: whether the prompt has the begin marker, which is then left out.

        Returns:
            The token ids.

        Raises:
            TokenError: the number or shapes of the arrays do not fit, or a code is not in its codebook.

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
        body: list[int] = tokens.tolist()
        return [*(() if opened else self.begin), *body, *self.end]

    def _tokens(self, frames: int, *, opened: bool) -> int:
        markers = len(self.end) + (0 if opened else len(self.begin))
        return (frames + self.delay) * len(self.slots) + markers


def _said(grid: tuple[int, int] | None) -> str:
    return "1 row and 1 column or more" if grid is None else f"{grid[0]} rows and {grid[1]} columns"


def _frames(layout: TokenLayout, books: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Convert ``books``, the codes of each codebook, to an array of token ids [frames, positions in a frame]."""
    order = [slot.codebook for slot in layout.slots]
    rates = [order.count(book) for book in range(layout.codebooks)]
    counts = {divmod(codes.size, rate) for codes, rate in zip(books, rates, strict=True)}
    (frames, rest), *others = counts
    if others or rest:
        sizes = [codes.size for codes in books]
        raise TokenError(f"codes must fill whole frames, each with {rates} codes per codebook, got {sizes} codes")
    by_frame = [codes.reshape(frames, rate) for codes, rate in zip(books, rates, strict=True)]
    columns = [
        by_frame[slot.codebook][:, order[:place].count(slot.codebook)] + slot.first
        for place, slot in enumerate(layout.slots)
    ]
    return np.stack(columns, axis=1)


def _delayed(layout: TokenLayout, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Delay codebook k by k frames, with padding in the gaps. Return an array [frames + codebooks - 1, codebooks]."""
    count, books = frames.shape
    steps = np.full((count + layout.delay, books), layout.pad, np.int64)
    for book in range(books):
        steps[book : book + count, book] = frames[:, book]
    return steps


def _checked(layout: TokenLayout, codes: Sequence[ArrayLike]) -> list[NDArray[np.int64]]:
    """Check the number, shapes and values of arrays of codes, and return them as int64 arrays."""
    arrays = [np.asarray(book) for book in codes]
    shapes = [list(array.shape) for array in arrays]
    if len(arrays) != layout.codebooks:
        raise TokenError(f"codes must be one array per codebook, {layout.codebooks} in all, got {len(arrays)}")
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
