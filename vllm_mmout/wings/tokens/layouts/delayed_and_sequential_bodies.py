"""Collect the codes of one picture or sound from tokens that come in the order "delayed" or "sequential"."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.wings.tokens.layouts.bodies import Body, Fit, tokens_as_array
from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


class DelayedBody(Body):
    """Collector of codes in the order "delayed": codebook k is delayed by k frames, and padding fills the gaps.

    See MusicGen, https://arxiv.org/abs/2306.05284, figure 1. Without a grid, the number of frames is known from the
    first padding of codebook 0.
    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._pad = layout.pad

    def take(self, token: int) -> bool:
        """Collect a code or padding token if it may come next. Return whether it was accepted."""
        step, book = divmod(len(self._tokens), self._books)
        slot = self._slots[book]
        if self._is_padding(step, book):
            fits = token == self._pad
        elif token == self._pad and self._padding_may_begin(step, book):
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
        """Return a description of the tokens that may come next, for error messages."""
        step, book = divmod(len(self._tokens), self._books)
        pad = f"padding (token {self._pad})"
        if self._is_padding(step, book):
            return f"{pad} for codebook {book} in step {step}"
        return f"{self._slots[book].description} in step {step}" + (
            f", or {pad}" if self._padding_may_begin(step, book) else ""
        )

    @property
    def fits(self) -> list[Fit]:
        """Return the ranges of token ids that fit as the next token. Return an empty list if no token fits."""
        if self.over:
            return []
        step, book = divmod(len(self._tokens), self._books)
        pad = self._pad or 0
        if self._is_padding(step, book):
            return [Fit(pad, pad + 1, self._tokens_after_next(self._frame_count or step + 1))]
        fits = [Fit(*self._slots[book][1:], self._tokens_after_next(self._frame_count or step + 1))]
        if self._padding_may_begin(step, book):
            fits.append(Fit(pad, pad + 1, self._tokens_after_next(step)))
        return fits

    @property
    def may_end(self) -> bool:
        """Return whether the picture or sound may end after the tokens so far."""
        return self.over

    def _tokens_after_next(self, frames: int) -> int:
        """Return how many tokens follow the next token in a picture or sound of ``frames`` frames."""
        return (frames + self._books - 1) * self._books - len(self._tokens) - 1

    def _is_padding(self, step: int, book: int) -> bool:
        """Return whether codebook ``book`` has padding instead of a code at time step ``step``.

        The codes of codebook k begin at step k.
        """
        frame = step - book
        return frame < 0 or (self._frame_count is not None and frame >= self._frame_count)

    def _padding_may_begin(self, step: int, book: int) -> bool:
        """Return whether the next token may be the first padding token after the codes of codebook 0.

        The position of this padding token gives the number of frames.
        """
        return book == 0 and step > 0 and self._frame_count is None

    def _frames(self) -> NDArray[np.int64]:
        whole = max(0, len(self._tokens) // self._books - (self._books - 1))
        steps = tokens_as_array(self._tokens, (len(self._tokens) // self._books, self._books))
        columns = [steps[book : book + whole, book] for book in range(self._books)]
        return np.stack(columns, axis=1)


class SequentialBody(Body):
    """Collector of codes in the order "sequential": all codes of codebook 0, then all of codebook 1, and so on.

    The number of codes per codebook is known from the grid. Without a grid, it is known from the first code of
    codebook 1 if each codebook has its own token ids, else only at the end of the picture or sound.
    """

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__(layout)
        self._apart = not isinstance(layout.first, int)

    def take(self, token: int) -> bool:
        """Store ``token`` if it is a code of the expected codebook. Return False if it is any other token."""
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
        """Return a description of the tokens that may come next, for error messages."""
        taken, count = len(self._tokens), self._frame_count
        book, frame = divmod(taken, count) if count else (0, taken)
        if self._frame_count is None and not self._apart:
            slot = self._slots[0]
            return f"a code ({slot.first} to {slot.stop - 1})"
        description = f"{self._slots[book].description} in frame {frame}"
        return f"{description}, or {self._slots[1].description}" if self._next_book_may_begin else description

    @property
    def fits(self) -> list[Fit]:
        """Return the ranges of token ids that fit as the next token. Return an empty list if no token fits."""
        if self.over:
            return []
        taken, count = len(self._tokens), self._frame_count
        if count is None and not self._apart:
            return [Fit(*self._slots[0][1:], -(taken + 1) % self._books)]
        slot = self._slots[taken // count if count else 0]
        fits = [Fit(*slot[1:], (count or taken + 1) * self._books - taken - 1)]
        if self._next_book_may_begin:
            fits.append(Fit(*self._slots[1][1:], taken * self._books - taken - 1))
        return fits

    @property
    def may_end(self) -> bool:
        """Return whether the picture or sound may end after the tokens so far."""
        if self._frame_count is None and not self._apart:
            return bool(self._tokens) and len(self._tokens) % self._books == 0
        return self.over

    @property
    def _next_book_may_begin(self) -> bool:
        return self._frame_count is None and self._apart and bool(self._tokens)

    def _frames(self) -> NDArray[np.int64]:
        """Return the token ids of all frames that have a code of every codebook, as an array [frames, codebooks]."""
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
