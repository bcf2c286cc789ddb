"""BatchSizes: chooses how many media one forward of a decoder takes, from measured times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_AGAIN = 64
"""Number of forwards of one kind after which the other kind is tried again."""
_WEIGHT = 0.5
"""Weight of the latest measurement in the average."""


@dataclass(slots=True)
class _Kind:
    """Measurements of forwards of one kind, of single media or of several, for one shape."""

    forwards: int = 0
    each: float = 0.0
    """Seconds per medium. Infinite if the last forward failed."""
    since: int = 0
    """Number of forwards of the other kind since the last forward of this kind."""

    def record(self, each: float) -> None:
        self.forwards += 1
        self.since = 0
        fresh = self.forwards <= 2 or math.isinf(self.each)
        self.each = each if fresh else (1 - _WEIGHT) * self.each + _WEIGHT * each


@dataclass(slots=True)
class _Seen:
    """Measurements for media of one shape."""

    alone: _Kind = field(default_factory=_Kind)
    together: _Kind = field(default_factory=_Kind)

    @property
    def better(self) -> bool:
        """Return whether decoding several media at once is faster, or has been tried less often so far."""
        if min(self.alone.forwards, self.together.forwards) < 2:
            return self.together.forwards < self.alone.forwards
        return self.together.each <= self.alone.each


class BatchSizes:
    """A chooser between forwards of single media and of several.

    It tries both kinds, keeps the faster kind, and tries the other again now and then. The first forward of a kind is
    slower than later ones, so both kinds are tried twice. ``most`` is the maximum number of media in a forward, and
    ``limit_s`` its time limit in seconds.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self.limit_s = limit_s
        self._seen: defaultdict[Hashable, _Seen] = defaultdict(_Seen)

    def size(self, key: Hashable, ready: int) -> int:
        """Return the number of media that the next forward takes, of ``ready`` media of one shape."""
        if self.most == 1 or ready <= 1:
            return 1
        seen = self._seen[key]
        other = seen.alone if seen.better else seen.together
        together = seen.better is (other.since < _AGAIN)
        return min(ready, self.most, self._in_time(seen)) if together else 1

    def waits(self, key: Hashable) -> bool:
        """Return whether a forward should wait for more media of a shape."""
        return self.most > 1 and self._seen[key].better

    def record(self, key: Hashable, count: int, seconds: float) -> None:
        """Record the seconds of a forward of ``count`` media."""
        seen = self._seen[key]
        kind, other = (seen.alone, seen.together) if count == 1 else (seen.together, seen.alone)
        kind.record(seconds / count)
        other.since += 1

    def failed(self, key: Hashable) -> None:
        """Record that a forward of several media failed."""
        self.record(key, 2, math.inf)

    def _in_time(self, seen: _Seen) -> int:
        """Return the number of media that a forward can take within the time limit, at least 1."""
        measured = seen.together if seen.together.forwards and not math.isinf(seen.together.each) else seen.alone
        return max(1, int(min(self.limit_s / measured.each, self.most))) if measured.each else self.most
