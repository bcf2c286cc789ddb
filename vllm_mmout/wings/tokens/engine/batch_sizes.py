"""BatchSizes: chooses how many pictures or sounds a decoder decodes in one forward pass, from measured times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_AGAIN = 64
"""Number of forward passes with the faster kind of batch (one item, or several) before the other is tried again."""
_WEIGHT = 0.5
"""Weight of the latest measurement in the moving average."""


@dataclass(slots=True)
class _ForwardTimes:
    """Measurements for one shape: of forward passes with a single picture or sound, or of passes with several."""

    forwards: int = 0
    each: float = 0.0
    """Seconds per picture or sound. Infinite if the last forward pass failed."""
    since: int = 0
    """Number of forward passes of the other kind since the last pass of this kind.

    The two kinds are passes with one picture or sound, and passes with several."""

    def record(self, each: float) -> None:
        self.forwards += 1
        self.since = 0
        fresh = self.forwards <= 2 or math.isinf(self.each)
        self.each = each if fresh else (1 - _WEIGHT) * self.each + _WEIGHT * each


@dataclass(slots=True)
class _ShapeTimes:
    """Measurements for pictures or sounds of one shape."""

    alone: _ForwardTimes = field(default_factory=_ForwardTimes)
    together: _ForwardTimes = field(default_factory=_ForwardTimes)

    @property
    def better(self) -> bool:
        """Return whether decoding several pictures or sounds at once takes less time for each than decoding one.

        Until both have been tried twice, return whether several at once has been tried less often.
        """
        if min(self.alone.forwards, self.together.forwards) < 2:
            return self.together.forwards < self.alone.forwards
        return self.together.each <= self.alone.each


class BatchSizes:
    """A chooser between decoding pictures or sounds one by one, and several in one forward pass.

    It tries both, keeps the faster, and tries the other again now and then. The first forward pass is slower than later
    passes, so both are tried twice. ``most`` is the maximum number of pictures or sounds in a forward pass, and
    ``limit_s`` its time limit in seconds.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self.limit_s = limit_s
        self._seen: defaultdict[Hashable, _ShapeTimes] = defaultdict(_ShapeTimes)

    def size(self, key: Hashable, ready: int) -> int:
        """Return how many of ``ready`` pictures or sounds with the shape ``key`` to decode in the next forward pass."""
        if self.most == 1 or ready <= 1:
            return 1
        seen = self._seen[key]
        other = seen.alone if seen.better else seen.together
        together = seen.better is (other.since < _AGAIN)
        return min(ready, self.most, self._in_time(seen)) if together else 1

    def waits(self, key: Hashable) -> bool:
        """Return whether a forward pass should wait for more pictures or sounds of the shape ``key``."""
        return self.most > 1 and self._seen[key].better

    def record(self, key: Hashable, count: int, seconds: float) -> None:
        """Record the seconds that a forward pass took for ``count`` pictures or sounds."""
        seen = self._seen[key]
        kind, other = (seen.alone, seen.together) if count == 1 else (seen.together, seen.alone)
        kind.record(seconds / count)
        other.since += 1

    def failed(self, key: Hashable) -> None:
        """Record that a forward pass with several pictures or sounds failed."""
        self.record(key, 2, math.inf)

    def _in_time(self, seen: _ShapeTimes) -> int:
        """Return how many pictures or sounds a forward pass can decode within the time limit, at least 1."""
        measured = seen.together if seen.together.forwards and not math.isinf(seen.together.each) else seen.alone
        return max(1, int(min(self.limit_s / measured.each, self.most))) if measured.each else self.most
