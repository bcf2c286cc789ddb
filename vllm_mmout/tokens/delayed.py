"""DelayedBody: each codebook one step later than the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.tokens.body import Body, tokens_as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.tokens.layout import TokenLayout


class DelayedBody(Body):
    """The order "delayed": step t has for codebook k the code of frame t - k, or padding.

    See MusicGen, https://arxiv.org/abs/2306.05284, figure 1. The first padding of codebook 0 tells how many frames
    there are, where no grid does.

    Args:
        layout: says which tokens fit.

    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._pad = layout.pad
        self._books = len(self._slots)
        self._frame_count = layout.grid and layout.grid[0] * layout.grid[1]

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
