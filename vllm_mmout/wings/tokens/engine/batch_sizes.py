"""BatchSizes: how many media one forward of a decoder takes, by what forwards were seen to cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_AGAIN = 64
"""After so many forwards of one kind the other one is tried again."""
_WEIGHT = 0.5
"""Of what was seen last."""


@dataclass(slots=True)
class _Kind:
    """Forwards of media of one shape: of one medium, or of several."""

    forwards: int = 0
    each: float = 0.0
    """Seconds for one medium; infinite where the last forward has failed."""
    since: int = 0
    """Forwards of the other kind since the last."""

    def record(self, each: float) -> None:
        self.forwards += 1
        self.since = 0
        fresh = self.forwards <= 2 or math.isinf(self.each)
        self.each = each if fresh else (1 - _WEIGHT) * self.each + _WEIGHT * each


@dataclass(slots=True)
class _Seen:
    """Of media of one shape."""

    alone: _Kind = field(default_factory=_Kind)
    together: _Kind = field(default_factory=_Kind)

    @property
    def better(self) -> bool:
        """Whether several at once are faster, or may be: they were not tried yet."""
        if min(self.alone.forwards, self.together.forwards) < 2:
            return self.together.forwards < self.alone.forwards
        return self.together.each <= self.alone.each


class BatchSizes:
    """Tries both kinds, one by one and several together, and stays with the faster; looks again now and then.

    The first forward of a kind is slower than all others: both are tried twice. ``limit_s``: seconds that one may take.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self.limit_s = limit_s
        self._seen: defaultdict[Hashable, _Seen] = defaultdict(_Seen)

    def size(self, key: Hashable, ready: int) -> int:
        """How many media of one shape the next forward takes, where so many are ready."""
        if self.most == 1 or ready <= 1:
            return 1
        seen = self._seen[key]
        other = seen.alone if seen.better else seen.together
        together = seen.better is (other.since < _AGAIN)
        return min(ready, self.most, self._in_time(seen)) if together else 1

    def waits(self, key: Hashable) -> bool:
        """Whether a forward is to wait for more media of a shape."""
        return self.most > 1 and self._seen[key].better

    def record(self, key: Hashable, count: int, seconds: float) -> None:
        """Say what a forward of so many media has cost."""
        seen = self._seen[key]
        kind, other = (seen.alone, seen.together) if count == 1 else (seen.together, seen.alone)
        kind.record(seconds / count)
        other.since += 1

    def failed(self, key: Hashable) -> None:
        """Say that a forward of several media has failed."""
        self.record(key, 2, math.inf)

    def _in_time(self, seen: _Seen) -> int:
        """How many media a forward can take within the limit, at least one."""
        known = seen.together if seen.together.forwards and not math.isinf(seen.together.each) else seen.alone
        return max(1, int(min(self.limit_s / known.each, self.most))) if known.each else self.most
