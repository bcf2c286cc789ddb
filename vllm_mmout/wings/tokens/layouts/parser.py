"""Separate text from pictures and sounds in a model's output tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import TokenError
from vllm_mmout.wings.tokens.layouts.bodies import Body, Fit, FramesBody
from vllm_mmout.wings.tokens.layouts.delayed_and_sequential_bodies import DelayedBody, SequentialBody
from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


class NextTokens(NamedTuple):
    """Tokens that may come next in an answer whose pictures and sounds must all be complete."""

    fits: tuple[Fit, ...] = ()
    """Ranges of picture or sound tokens that may come next.

    The number in `Fit.after` of each range also counts the tokens of the end marker."""
    text: int | None = None
    """Minimum number of tokens that must follow a text token to complete an unfinished picture or sound.

    None if the next token must not be text."""
    may_end: bool = False
    """Whether the answer may end after the tokens so far."""


class StreamParser:
    """Parser that finds the pictures and sounds in the output tokens of one answer.

    ``opened`` says whether the answer begins inside a picture or sound that the prompt has opened. With None, the
    layout decides. If the answer begins with text nevertheless, it does not begin inside a picture or sound.
    """

    error: TokenError | None
    """Error for the first token that does not fit the token layout. Later tokens are ignored. None if all tokens
    fit."""
    seen: int
    """Number of tokens that `feed` has processed so far."""

    def __init__(self, layout: TokenLayout, *, opened: bool | None = None) -> None:
        self.error = None
        self.seen = 0
        self._layout = layout
        self._media = layout.token_ids
        self._done: list[Medium] = []
        self._start: int | None = None  # first token of the open medium, or None outside media
        self._body: Body | None = None  # codes of the open medium, once its begin marker is complete
        self._due: tuple[int, ...] = ()  # remaining tokens of the marker that has begun or must follow
        self._stop = 0  # one past the last token of the open medium; 0 if only the prompt has opened it
        self._complete = False  # whether the open medium is complete once its end marker is
        self._last = -1  # position of the token that ended the stream
        if layout.opened if opened is None else opened:
            self._start = 0
            self._body = _body_of(layout)

    def feed(self, token_ids: Sequence[int], *, stopped: bool = False) -> list[bool]:
        """Process the next tokens of the answer. Return a flag for each token: True if the token is text.

        ``stopped`` says that the last token, an EOS or a stop token, ended the stream. It then need not fit the layout.
        """
        at = self.seen
        self.seen += len(token_ids)
        if self._start is None and self.error is None and self._media.isdisjoint(token_ids):
            return [True] * len(token_ids)
        if stopped:
            self._last = self.seen - 1
        return [self._take_token(token, at + index) for index, token in enumerate(token_ids)]

    @property
    def inside(self) -> bool:
        """Return whether a picture or sound has begun and is not complete yet."""
        return self._start is not None

    @property
    def next(self) -> NextTokens:
        """Return the tokens that may come next in an answer that must contain only complete pictures and sounds.

        After an error, return a `NextTokens` that allows no token.
        """
        layout, body = self._layout, self._body
        if self.error is not None:
            return NextTokens()
        if self._due:
            body_tokens = _body_of(layout).least + len(layout.end) if body is None else 0
            return NextTokens((Fit(self._due[0], self._due[0] + 1, len(self._due) - 1 + body_tokens),))
        if body is None:
            return NextTokens(self._beginning, text=0, may_end=True)
        fits = [fit._replace(after=fit.after + len(layout.end)) for fit in body.fits]
        if layout.end and body.may_end:
            fits.append(Fit(layout.end[0], layout.end[0] + 1, len(layout.end) - 1))
        may_end = self._has_open_end and body.may_end
        if layout.text_inside:
            return NextTokens(tuple(fits), text=body.least + len(layout.end), may_end=may_end)
        return NextTokens(tuple(fits), text=0 if may_end else None, may_end=may_end)

    def take(self) -> list[Medium]:
        """Return the pictures and sounds that ended since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def begun(self) -> tuple[int, int] | None:
        """Return the start index of the unfinished picture or sound, and its number of complete rows or frames.

        The start is the index of its first output token. Return None outside pictures and sounds, before
        the begin marker is complete, and after an error.
        """
        if self._body is None or self._start is None or self.error is not None:
            return None
        return self._start, self._body.ready

    def so_far(self) -> Medium:
        """Return the unfinished picture or sound with the codes that have come so far."""
        if self._body is None or self._start is None:
            raise TokenError("no medium has begun; ask begun first")
        return Medium(self._start, self._stop, self._body.codes(), complete=False, grid=self._layout.grid)

    def finish(self) -> list[Medium]:
        """End the stream. Return the media that `take` has not returned yet, including an unfinished medium.

        If the stream ended inside a picture or sound, its ``complete`` is False, and it has only its complete rows or
        frames. It is left out if it has not even one complete row or frame.
        """
        if self._body is not None:
            self._close(complete=self._is_complete(self._body))
        self._start, self._due = None, ()
        return self.take()

    def _take_token(self, token: int, at: int) -> bool:
        """Process one token, at index ``at`` of the answer. Return whether it is text."""
        body = self._body
        if body is not None and not self._due and self.error is None:
            if body.take(token):
                self._stop = at + 1
                if body.over:
                    self._on_last_code()
                return False
            return self._take_after(body, token, at)
        if self.error is not None:
            return False
        return self._take_outside(token, at) if self._start is None else self._take_marker(token, at)

    def _take_outside(self, token: int, at: int) -> bool:
        """Process a token that is outside pictures and sounds. Return whether it is text."""
        if token not in self._media:
            return True
        begin = self._layout.begin
        if begin:
            if token != begin[0]:
                return self._refuse(token, at, f"text or token {begin[0]}, which begins a medium")
            self._due = begin[1:]
            self._body = None if self._due else _body_of(self._layout)
        else:
            body = _body_of(self._layout)
            if not body.take(token):
                return self._refuse(token, at, f"text or {body.expected}")
            self._body = body
        self._start, self._stop = at, at + 1
        if self._body is not None and self._body.over:
            self._on_last_code()
        return False

    def _take_marker(self, token: int, at: int) -> bool:
        """Process a token that must be the next token of a begin or end marker. Return whether it is text."""
        if token != self._due[0]:
            side = "begin" if self._body is None else "end"
            return self._refuse(token, at, f"token {self._due[0]} of the marker {side}")
        self._stop = at + 1
        self._due = self._due[1:]
        if not self._due:
            if self._body is None:
                self._body = _body_of(self._layout)
            else:
                self._close(complete=self._complete)
        return False

    def _take_after(self, body: Body, token: int, at: int) -> bool:
        """Process a token after the codes of a picture or sound, such as an end marker. Return whether it is text."""
        end, begin = self._layout.end, self._layout.begin
        if token in end[:1]:
            self._due, self._complete = end, body.may_end
            return self._take_marker(token, at)
        if self._layout.text_inside and token not in self._media:
            return True
        if (self._has_open_end or not self._stop) and (token not in self._media or token in begin[:1]):
            self._close(complete=body.whole)
            return self._take_outside(token, at)
        or_end = f", or token {end[0]}, which ends the medium" if end else ""
        return self._refuse(token, at, body.expected + or_end)

    def _on_last_code(self) -> None:
        """Close the picture or sound after the token of its last code. If an end marker must follow, wait for it."""
        self._due, self._complete = self._layout.end, True
        if not self._due:
            self._close(complete=True)

    def _close(self, *, complete: bool) -> None:
        """End the current picture or sound. Drop it if it has not even one complete row or frame."""
        body, start = self._body, self._start
        self._body, self._start, self._due = None, None, ()
        if body is None or start is None:
            return
        codes = body.codes()
        if codes[0].size:
            grid = self._layout.grid
            if self._layout.modality == "image" and complete:
                rows, columns = codes[0].shape
                grid = (rows, columns)
            self._done.append(Medium(start, self._stop, codes, complete, grid))

    def _is_complete(self, body: Body) -> bool:
        """Return whether the picture or sound in ``body`` counts as complete if the answer ends now."""
        return self._complete if self._due else body.has_all_codes or (self._has_open_end and body.whole)

    @property
    def _has_open_end(self) -> bool:
        """Return whether the layout has neither an end marker nor a grid.

        Only a later token then shows that a picture or sound has ended.
        """
        return not self._layout.end and self._layout.grid is None

    @cached_property
    def _beginning(self) -> tuple[Fit, ...]:
        """Return the ranges of token ids that may begin a picture or sound."""
        layout = self._layout
        body, begin = _body_of(layout), layout.begin
        if not begin:
            return tuple(fit._replace(after=fit.after + len(layout.end)) for fit in body.fits)
        return (Fit(begin[0], begin[0] + 1, len(begin) - 1 + body.least + len(layout.end)),)

    def _refuse(self, token: int, at: int, expected: str) -> bool:
        """Record an error for an unexpected token. Return whether the token is text.

        The token that ended the stream, such as an EOS, counts as text. No error is recorded for that token.
        """
        if at == self._last:
            return True
        self.error = TokenError(
            f"token {token} at position {at} of the output does not fit the token layout: expected {expected};"
            " use the layout of this model, or restrict sampling to tokens that fit"
        )
        return False


def parse(layout: TokenLayout, token_ids: Sequence[int]) -> tuple[list[int], list[Medium]]:
    """Split the tokens of a whole answer into text tokens and media. Raise a TokenError if a token does not fit."""
    parser = StreamParser(layout)
    text = [token for token, is_text in zip(token_ids, parser.feed(token_ids), strict=True) if is_text]
    if parser.error is not None:
        raise parser.error
    return text, parser.finish()


def _body_of(layout: TokenLayout) -> Body:
    """Create an empty `Body` for the codes of one picture or sound. The subclass depends on the token order."""
    if layout.codebooks == 1 or layout.order in {"flattened", "interleaved"}:
        return FramesBody(layout)
    return DelayedBody(layout) if layout.order == "delayed" else SequentialBody(layout)


@dataclass(frozen=True, eq=False)
class Medium:
    """Codes of one picture or sound, and the range of output tokens that encode it."""

    start: int
    """Index of the first output token of the picture or sound, including its begin marker."""
    stop: int
    """Index after the last output token of the picture or sound, including its end marker.

    The range from ``start`` to ``stop`` may include text tokens inside a sound."""
    codes: tuple[NDArray[np.int64], ...]
    """Codes as one int64 array per codebook: [rows, columns] for an image, [number of codes] for a sound. Incomplete
    rows or frames are left out."""
    complete: bool
    """Whether the picture or sound has all its codes. False if the answer ended, or continued with text, too early."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the whole picture. None for a sound, or if they are unknown."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Medium):
            return NotImplemented
        return (
            (self.start, self.stop, self.complete, self.grid) == (other.start, other.stop, other.complete, other.grid)
            and len(self.codes) == len(other.codes)
            and all(map(np.array_equal, self.codes, other.codes))
        )

    __hash__ = None  # type: ignore[assignment]  # not hashable, like its arrays
