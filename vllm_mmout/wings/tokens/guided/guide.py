"""Guide: what a request's tokens may be, as it travels to the worker; Follower: which may come next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import msgspec

from vllm_mmout.wings.tokens.layouts import StreamParser, TokenLayout

KEY: Final = "mmout_guide"
"""Of ``SamplingParams.extra_args``; the engine alone puts it there, what a client sends under it is refused."""


class Guide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tokens of one answer may be."""

    layout: str
    """The fields of a `TokenLayout`, as JSON."""
    alone: bool
    """Whether the answer is one medium and nothing else, or text may stand before, between and behind media."""
    opened: bool
    """Whether it begins inside a medium."""
    budget: int
    """Tokens that it may have at most."""
    stops: tuple[int, ...] = ()
    """Tokens that end it."""

    @classmethod
    def of(cls, layout: TokenLayout, *, alone: bool, opened: bool, budget: int, stops: Sequence[int] = ()) -> Self:
        """Make it for a layout."""
        fields = json.dumps(asdict(layout), sort_keys=True)
        return cls(layout=fields, alone=alone, opened=opened, budget=budget, stops=tuple(stops))

    def to_wire(self) -> dict[str, Any]:
        """Plain data, for ``extra_args``."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """What ``extra_args`` say, None where they say nothing; a ``msgspec.ValidationError`` if that is wrong."""
        wire = (extra_args or {}).get(KEY)
        return None if wire is None else msgspec.convert(wire, cls, strict=False)


@lru_cache(maxsize=64)
def layout_of(fields: str) -> TokenLayout:
    """The layout of `Guide.layout`."""
    return TokenLayout.from_mapping(json.loads(fields))


class Allowed(NamedTuple):
    """Tokens that may come next."""

    media: tuple[tuple[int, int], ...] = ()
    """Ranges of ids, the second being the first that is none of it."""
    text: bool = False
    """Whether all may come that are neither media nor among the stops."""
    stops: tuple[int, ...] = ()
    """Those that may end the answer here."""


class Follower:
    """Follows the tokens of one guided answer."""

    def __init__(self, guide: Guide) -> None:
        self.guide = guide
        self.layout = layout_of(guide.layout)
        self._begin()

    def _begin(self) -> None:
        self._parser = StreamParser(self.layout, opened=self.guide.opened)
        self._closed = False

    @property
    def seen(self) -> int:
        """How many tokens it has followed."""
        return self._parser.seen

    def follow(self, tokens: Sequence[int]) -> None:
        """Take the tokens that came since the last call."""
        self._parser.feed(tokens)
        self._closed = bool(self._parser.take()) or self._closed

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Take all tokens of the answer so far; those that were taken back are forgotten."""
        if len(tokens) < self.seen:
            self._begin()
        if len(tokens) > self.seen:
            self.follow(tokens[self.seen :])

    @property
    def allowed(self) -> Allowed | None:
        """What may come next; None: anything, since the tokens so far do not fit the layout, or nothing would.

        A medium begins, and goes on, only as long as what is left of the budget has room for all of it.
        """
        parser, guide = self._parser, self.guide
        if guide.alone and self._closed:
            return Allowed(stops=guide.stops) if guide.stops else None
        next_, left = parser.next, guide.budget - parser.seen - 1
        media = tuple((fit.first, fit.stop) for fit in next_.fits if fit.after <= left)
        free = not guide.alone or (parser.inside and self.layout.text_inside)
        text = free and next_.text is not None and next_.text <= left
        ends = next_.may_end and (parser.inside or not guide.alone)
        found = Allowed(media, text, guide.stops if ends else ())
        return found if any(found) else None

    @property
    def least(self) -> int:
        """The fewest tokens with which a medium that begins next, or has begun, is whole."""
        return 1 + min(fit.after for fit in self._parser.next.fits)
