"""Define which tokens may come next in an answer that must contain only complete pictures or sounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import msgspec

from vllm_mmout.wings.tokens.layouts import StreamParser, TokenLayout

KEY: Final = "mmout_guide"
"""Key in ``SamplingParams.extra_args`` for the rules (`Guide`) that restrict an answer's tokens. Clients must not set
it."""


class Guide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules that say which tokens an answer may contain. A logits processor in the worker enforces them."""

    layout: str
    """Description of the tokens that encode a picture or sound: the fields of a `TokenLayout` as JSON."""
    alone: bool
    """Whether the answer must be a single picture or sound. If False, it may contain text and several pictures or
    sounds."""
    opened: bool
    """Whether the prompt ends inside a picture or sound, so that the answer must continue it."""
    budget: int
    """Maximum number of tokens of the answer."""
    stops: tuple[int, ...] = ()
    """Ids of the tokens that end the answer."""

    @classmethod
    def of(cls, layout: TokenLayout, *, alone: bool, opened: bool, budget: int, stops: Sequence[int] = ()) -> Self:
        """Create the rules that say which tokens an answer may contain.

        ``layout`` describes the tokens of pictures or sounds.
        """
        fields = json.dumps(asdict(layout), sort_keys=True)
        return cls(layout=fields, alone=alone, opened=opened, budget=budget, stops=tuple(stops))

    def to_wire(self) -> dict[str, Any]:
        """Return the token rules as a dict, for ``SamplingParams.extra_args``."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """Read the rules for an answer's tokens from ``SamplingParams.extra_args``. Return None if they are missing.

        Raises:
            msgspec.ValidationError: the rules are malformed.

        """
        wire = (extra_args or {}).get(KEY)
        return None if wire is None else msgspec.convert(wire, cls, strict=False)


@lru_cache(maxsize=64)
def layout_of(fields: str) -> TokenLayout:
    """Parse the JSON in `Guide.layout`, and return a `TokenLayout`. Results are cached."""
    return TokenLayout.from_mapping(json.loads(fields))


class AllowedTokens(NamedTuple):
    """Tokens that the model may generate next."""

    media: tuple[tuple[int, int], ...] = ()
    """Ranges (first, stop) of the picture or sound token ids that are allowed. ``stop`` is exclusive."""
    text: bool = False
    """Whether text tokens are allowed. Text tokens are all tokens except media tokens and stop tokens."""
    stops: tuple[int, ...] = ()
    """Allowed stop tokens, which end the answer."""


class TokenTracker:
    """Tracker of one answer's tokens that computes which tokens its rules (`Guide`) allow next."""

    def __init__(self, guide: Guide) -> None:
        self.guide = guide
        self.layout = layout_of(guide.layout)
        self._begin()

    def _begin(self) -> None:
        self._parser = StreamParser(self.layout, opened=self.guide.opened)
        self._closed = False

    @property
    def seen(self) -> int:
        """Return the number of tokens of the answer that this tracker has read."""
        return self._parser.seen

    def read(self, tokens: Sequence[int]) -> None:
        """Update the tracker with ``tokens``, which were added to the answer since the last call."""
        self._parser.feed(tokens)
        self._closed = bool(self._parser.take()) or self._closed

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Update the tracker to ``tokens``, the whole answer so far. Start over if the answer has become shorter."""
        if len(tokens) < self.seen:
            self._begin()
        if len(tokens) > self.seen:
            self.read(tokens[self.seen :])

    @property
    def allowed(self) -> AllowedTokens | None:
        """Return the tokens that the model may generate next, or None if any token may come.

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
