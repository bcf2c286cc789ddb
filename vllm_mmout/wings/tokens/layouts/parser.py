"""StreamParser: tells text from media while tokens come, and makes media of those that are codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import TokenError
from vllm_mmout.wings.tokens.layouts.bodies import Body, Fit, FramesBody
from vllm_mmout.wings.tokens.layouts.bodies_apart import DelayedBody, SequentialBody
from vllm_mmout.wings.tokens.layouts.layout import TokenLayout


class Next(NamedTuple):
    """What may come next in a stream whose media are to be whole."""

    fits: tuple[Fit, ...] = ()
    """Tokens of media; ``after`` counts those of the medium, its end marker included."""
    text: int | None = None
    """The fewest tokens with which the medium that is open is whole after a token of text; None: no text fits."""
    may_end: bool = False
    """Whether the stream may end here."""


class StreamParser:
    """Follows the output tokens of one request.

    ``opened``: the first token is inside a medium; None: as the layout says. Where the answer begins with text all the
    same, there is no such medium.
    """

    error: TokenError | None
    """Names the first token that does not fit; those after it are ignored."""
    seen: int
    """How many tokens were taken."""

    def __init__(self, layout: TokenLayout, *, opened: bool | None = None) -> None:
        self.error = None
        self.seen = 0
        self._layout = layout
        self._media = layout.token_ids
        self._done: list[Medium] = []
        self._start: int | None = None  # of the medium that has begun
        self._body: Body | None = None  # its codes, once its begin marker is whole
        self._due: tuple[int, ...] = ()  # what is left of a marker that has begun, or that alone may follow
        self._stop = 0  # one past the last token of the medium that has begun; 0: of that of the prompt there is none
        self._complete = False  # whether that medium is complete when its end marker is
        self._last = -1  # position of the token that ended the stream
        if layout.opened if opened is None else opened:
            self._start = 0
            self._body = _body_of(layout)

    def feed(self, token_ids: Sequence[int], *, stopped: bool = False) -> list[bool]:
        """Take the tokens of a step; for each whether it is text.

        ``stopped``: the last of them ended the stream, an EOS or a stop token: where it does not fit, this is no error.
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
        """Whether a medium has begun that is not whole."""
        return self._start is not None

    @property
    def next(self) -> Next:
        """What may come next, so that each medium is whole; where an error stands, nothing."""
        layout, body = self._layout, self._body
        if self.error is not None:
            return Next()
        if self._due:
            begins = _body_of(layout).least + len(layout.end) if body is None else 0
            return Next((Fit(self._due[0], self._due[0] + 1, len(self._due) - 1 + begins),))
        if body is None:
            return Next(self._beginning, text=0, may_end=True)
        fits = [fit._replace(after=fit.after + len(layout.end)) for fit in body.fits]
        if layout.end and body.may_end:
            fits.append(Fit(layout.end[0], layout.end[0] + 1, len(layout.end) - 1))
        ends = self._is_run and body.may_end
        if layout.text_inside:
            return Next(tuple(fits), text=body.least + len(layout.end), may_end=ends)
        return Next(tuple(fits), text=0 if ends else None, may_end=ends)

    def take(self) -> list[Medium]:
        """The media that have ended since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def begun(self) -> tuple[int, int] | None:
        """Of the medium that has not ended its first token, and how many whole rows or frames it has."""
        if self._body is None or self._start is None or self.error is not None:
            return None
        return self._start, self._body.ready

    def so_far(self) -> Medium:
        """The medium that has not ended, as it is."""
        if self._body is None or self._start is None:
            raise TokenError("no medium has begun; ask begun first")
        return Medium(self._start, self._stop, self._body.codes(), complete=False, grid=self._layout.grid)

    def finish(self) -> list[Medium]:
        """End the stream; gives what was not taken yet.

        A medium inside which the stream ended has ``complete`` False and its whole rows or frames, if there are any.
        """
        if self._body is not None:
            self._close(complete=self._all_came(self._body))
        self._start, self._due = None, ()
        return self.take()

    def _take_token(self, token: int, at: int) -> bool:
        """Take one token, and say whether it is text."""
        body = self._body
        if body is not None and not self._due and self.error is None:
            if body.take(token):
                self._stop = at + 1
                if body.over:
                    self._fill()
                return False
            return self._take_after(body, token, at)
        if self.error is not None:
            return False
        return self._take_outside(token, at) if self._start is None else self._take_marker(token, at)

    def _take_outside(self, token: int, at: int) -> bool:
        """Take a token where no medium has begun."""
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
            self._fill()
        return False

    def _take_marker(self, token: int, at: int) -> bool:
        """Take a token where a marker is due."""
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
        """Take a token that is none of the medium's body."""
        end, begin = self._layout.end, self._layout.begin
        if token in end[:1]:
            self._due, self._complete = end, body.may_end
            return self._take_marker(token, at)
        if self._layout.text_inside and token not in self._media:
            return True
        if (self._is_run or not self._stop) and (token not in self._media or token in begin[:1]):
            self._close(complete=body.whole)
            return self._take_outside(token, at)
        said = f", or token {end[0]}, which ends the medium" if end else ""
        return self._refuse(token, at, body.expected + said)

    def _fill(self) -> None:
        """A medium has all of its codes: its end marker is due, if it has one."""
        self._due, self._complete = self._layout.end, True
        if not self._due:
            self._close(complete=True)

    def _close(self, *, complete: bool) -> None:
        """End the medium that has begun, and keep it if one row or frame is whole."""
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

    def _all_came(self, body: Body) -> bool:
        """Whether a medium after which the stream ends has all of its codes."""
        return self._complete if self._due else body.filled or (self._is_run and body.whole)

    @property
    def _is_run(self) -> bool:
        """Whether nothing but the first token that is no code ends a medium."""
        return not self._layout.end and self._layout.grid is None

    @cached_property
    def _beginning(self) -> tuple[Fit, ...]:
        """What begins a medium."""
        layout = self._layout
        body, begin = _body_of(layout), layout.begin
        if not begin:
            return tuple(fit._replace(after=fit.after + len(layout.end)) for fit in body.fits)
        return (Fit(begin[0], begin[0] + 1, len(begin) - 1 + body.least + len(layout.end)),)

    def _refuse(self, token: int, at: int, expected: str) -> bool:
        """Keep the error that a token does not fit; one that ended the stream is text instead."""
        if at == self._last:
            return True
        self.error = TokenError(
            f"token {token} at position {at} of the output does not fit the token layout: expected {expected};"
            " take the layout of this model, or have only tokens that fit sampled"
        )
        return False


def parse(layout: TokenLayout, token_ids: Sequence[int]) -> tuple[list[int], list[Medium]]:
    """Part a whole stream into tokens of text and media; raises a TokenError where a token does not fit."""
    parser = StreamParser(layout)
    text = [token for token, said in zip(token_ids, parser.feed(token_ids), strict=True) if said]
    if parser.error is not None:
        raise parser.error
    return text, parser.finish()


def _body_of(layout: TokenLayout) -> Body:
    """What takes the codes of one medium."""
    if layout.codebooks == 1 or layout.order in {"flattened", "interleaved"}:
        return FramesBody(layout)
    return DelayedBody(layout) if layout.order == "delayed" else SequentialBody(layout)


@dataclass(frozen=True, eq=False)
class Medium:
    """The codes of one picture or sound, and the tokens that it takes."""

    start: int
    """The first output token that it takes, its begin marker included."""
    stop: int
    """One past the last, its end marker included: ``output_token_ids[start:stop]``; where the layout has text inside
    media, also that between them."""
    codes: tuple[NDArray[np.int64], ...]
    """One array a codebook: of an image [rows, columns], of a sound [n_k]; whole rows and whole frames only."""
    complete: bool
    """False: the stream ended, or left it, before it was whole."""
    grid: tuple[int, int] | None = None
    """Rows and columns that an image has when it is whole; None: not known, or a sound."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Medium):
            return NotImplemented
        return (
            (self.start, self.stop, self.complete, self.grid) == (other.start, other.stop, other.complete, other.grid)
            and len(self.codes) == len(other.codes)
            and all(map(np.array_equal, self.codes, other.codes))
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have none either
