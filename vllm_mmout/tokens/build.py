"""Writing codes as tokens: the inverse of parsing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import TokenError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from vllm_mmout.tokens.layout import TokenLayout


def built(layout: TokenLayout, codes: Sequence[ArrayLike], *, opened: bool = False) -> list[int]:
    """Write the codes of one medium as tokens; see `TokenLayout.build`."""
    books = _checked(layout, codes)
    frames = _frames(layout, books)  # token ids, [frames, slots]
    if layout.order == "sequential":
        tokens = frames.T.ravel()
    elif layout.order == "delayed":
        tokens = _delayed(layout, frames).ravel()
    elif layout.row_end is not None:
        rows = frames.reshape(len(books[0]), -1)
        ends = np.full((len(rows), 1), layout.row_end)
        tokens = np.concatenate((rows, ends), axis=1).ravel()
    else:
        tokens = frames.ravel()
    inside: list[int] = tokens.tolist()
    return [*(() if opened else layout.begin), *inside, *layout.end]


def _frames(layout: TokenLayout, books: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The token ids of each frame: [frames, slots].

    Raises:
        TokenError: the codebooks are not of one number of frames.

    """
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
    """The codes as int64 arrays.

    Raises:
        TokenError: they are no integers, of another number or shape than the layout says, or out of range.

    """
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
