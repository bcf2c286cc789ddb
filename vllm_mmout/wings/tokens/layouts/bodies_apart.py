"""Bodies of the orders in which a frame's codes stand apart: "delayed" and "sequential"."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.wings.tokens.layouts.bodies import Body, Fit, tokens_as_array
from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


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
    def fits(self) -> list[Fit]:
        """See `Body.fits`."""
        if self.over:
            return []
        step, book = divmod(len(self._tokens), self._books)
        pad = self._pad or 0
        if self._pads(step, book):
            return [Fit(pad, pad + 1, self._rest(self._frame_count or step + 1))]
        found = [Fit(*self._slots[book][1:], self._rest(self._frame_count or step + 1))]
        if self._may_stop(step, book):
            found.append(Fit(pad, pad + 1, self._rest(step)))
        return found

    @property
    def may_end(self) -> bool:
        """Whether an end marker fits here: when the last codebook has its last code."""
        return self.over

    def _rest(self, frames: int) -> int:
        """The fewest tokens after the next one, of so many frames."""
        return (frames + self._books - 1) * self._books - len(self._tokens) - 1

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
    def fits(self) -> list[Fit]:
        """See `Body.fits`."""
        if self.over:
            return []
        taken, count = len(self._tokens), self._frame_count
        if count is None and not self._apart:
            return [Fit(*self._slots[0][1:], -(taken + 1) % self._books)]
        slot = self._slots[taken // count if count else 0]
        found = [Fit(*slot[1:], (count or taken + 1) * self._books - taken - 1)]
        if self._next_book_may_begin:
            found.append(Fit(*self._slots[1][1:], taken * self._books - taken - 1))
        return found

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
