"""Guide, the rules for the tokens of an answer, and Follower, which derives the allowed next tokens from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import msgspec

from vllm_mmout.wings.tokens.layouts import StreamParser, TokenLayout

KEY: Final = "mmout_guide"
"""Key of the `Guide` in ``SamplingParams.extra_args``. Only the engine may set it. A client that does gets an error."""


class Guide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules for the tokens of one answer. They are sent to the worker, where a logits processor applies them."""

    layout: str
    """Fields of the `TokenLayout`, as JSON."""
    alone: bool
    """Whether the answer is a single picture or sound. If False, text may come before, between and after media."""
    opened: bool
    """Whether the answer begins inside a picture or sound, whose begin marker is in the prompt."""
    budget: int
    """Maximum number of tokens of the answer."""
    stops: tuple[int, ...] = ()
    """Tokens that end the answer."""

    @classmethod
    def of(cls, layout: TokenLayout, *, alone: bool, opened: bool, budget: int, stops: Sequence[int] = ()) -> Self:
        """Create the rules for an answer whose pictures or sounds are encoded as ``layout`` says."""
        fields = json.dumps(asdict(layout), sort_keys=True)
        return cls(layout=fields, alone=alone, opened=opened, budget=budget, stops=tuple(stops))

    def to_wire(self) -> dict[str, Any]:
        """Return the rules as plain data for ``SamplingParams.extra_args``."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """Read the rules from ``SamplingParams.extra_args``. Return None if they are missing.

        Raises:
            msgspec.ValidationError: the rules are malformed.

        """
        wire = (extra_args or {}).get(KEY)
        return None if wire is None else msgspec.convert(wire, cls, strict=False)


@lru_cache(maxsize=64)
def layout_of(fields: str) -> TokenLayout:
    """Return the `TokenLayout` that `Guide.layout` holds as JSON."""
    return TokenLayout.from_mapping(json.loads(fields))


class AllowedTokens(NamedTuple):
    """The tokens that may come next."""

    media: tuple[tuple[int, int], ...] = ()
    """Media tokens that may come next, as ranges of token ids with exclusive ends."""
    text: bool = False
    """Whether text may come next, that is, any token except media tokens and stop tokens."""
    stops: tuple[int, ...] = ()
    """Stop tokens that may come next."""


class Follower:
    """An object that reads the tokens of one answer, and tells which tokens its `Guide` allows next."""

    def __init__(self, guide: Guide) -> None:
        self.guide = guide
        self.layout = layout_of(guide.layout)
        self._begin()

    def _begin(self) -> None:
        self._parser = StreamParser(self.layout, opened=self.guide.opened)
        self._closed = False

    @property
    def seen(self) -> int:
        """Return the number of tokens that have been read so far."""
        return self._parser.seen

    def follow(self, tokens: Sequence[int]) -> None:
        """Read the tokens that came since the last call."""
        self._parser.feed(tokens)
        self._closed = bool(self._parser.take()) or self._closed

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Read all tokens of the answer so far. Start again if the answer has become shorter."""
        if len(tokens) < self.seen:
            self._begin()
        if len(tokens) > self.seen:
            self.follow(tokens[self.seen :])

    @property
    def allowed(self) -> AllowedTokens | None:
        """Return the tokens that may come next.

        None means any token, because the tokens so far do not fit the layout, or no token would be allowed. A picture
        or sound may begin or continue only if the remaining budget has room for all of it.
        """
        parser, guide = self._parser, self.guide
        if guide.alone and self._closed:
            return AllowedTokens(stops=guide.stops) if guide.stops else None
        next_, left = parser.next, guide.budget - parser.seen - 1
        media = tuple((fit.first, fit.stop) for fit in next_.fits if fit.after <= left)
        text_allowed = not guide.alone or (parser.inside and self.layout.text_inside)
        text = text_allowed and next_.text is not None and next_.text <= left
        ends = next_.may_end and (parser.inside or not guide.alone)
        allowed = AllowedTokens(media, text, guide.stops if ends else ())
        return allowed if any(allowed) else None

    @property
    def least(self) -> int:
        """Return the minimum number of tokens that complete the unfinished picture or sound.

        Outside pictures and sounds, this is the number for a whole new picture or sound.
        """
        return 1 + min(fit.after for fit in self._parser.next.fits)
