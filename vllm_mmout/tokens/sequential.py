"""SequentialBody: all codes of one codebook, then all of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.tokens.body import Body, tokens_as_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.tokens.layout import TokenLayout


class SequentialBody(Body):
    """The order "sequential": as many codes of each codebook.

    How many there are is said by the grid, or where each codebook has token ids of its own, by the first code of
    codebook 1; otherwise the end tells.

    Args:
        layout: says which tokens fit.

    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._books = len(self._slots)
        self._apart = not isinstance(layout.first, int)
        self._frame_count = layout.grid and layout.grid[0] * layout.grid[1]

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
