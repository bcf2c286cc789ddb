"""Choose how many pictures or sounds to decode in one forward pass, from measured times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_AGAIN = 64
"""Number of forward passes with the faster method (one by one, or in a batch) before the slower method is timed
again."""
_WEIGHT = 0.5
"""Weight, 0 to 1, of the latest measurement in the moving average of decoding times."""


@dataclass(slots=True)
class _ForwardTimes:
    """Moving average of decoding times by one method: one picture or sound at a time, or in batches."""

    forwards: int = 0
    each: float = 0.0
    """Average seconds per picture or sound. Infinity if the last forward pass failed."""
    since: int = 0
    """Number of forward passes by the other method since this method was last used."""

    def record(self, each: float) -> None:
        self.forwards += 1
        self.since = 0
        fresh = self.forwards <= 2 or math.isinf(self.each)
        self.each = each if fresh else (1 - _WEIGHT) * self.each + _WEIGHT * each


@dataclass(slots=True)
class _ShapeTimes:
    """Decoding times for media of one shape, measured one at a time (``alone``) and in batches (``together``)."""

    alone: _ForwardTimes = field(default_factory=_ForwardTimes)
    together: _ForwardTimes = field(default_factory=_ForwardTimes)

    @property
    def together_is_faster(self) -> bool:
        """Return whether a batch takes less time per picture or sound than decoding them one by one.

        Until both have been tried twice, return whether several at once has been tried less often.
        """
        if min(self.alone.forwards, self.together.forwards) < 2:
            return self.together.forwards < self.alone.forwards
        return self.together.each <= self.alone.each


class BatchSizes:
    """Policy that chooses how many pictures or sounds the decoder processes in one forward pass.

    It tries both, keeps the faster, and tries the other again now and then. The first forward pass is slower than later
    passes, so both are tried twice. ``most`` is the maximum number of pictures or sounds in a forward pass, and
    ``limit_s`` its time limit in seconds.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self.limit_s = limit_s
        self._seen: defaultdict[Hashable, _ShapeTimes] = defaultdict(_ShapeTimes)

    def size(self, key: Hashable, ready: int) -> int:
        """Return how many of ``ready`` pictures or sounds of the shape ``key`` to decode in the next forward pass."""
        if self.most == 1 or ready <= 1:
            return 1
        seen = self._seen[key]
        other = seen.alone if seen.together_is_faster else seen.together
        together = seen.together_is_faster is (other.since < _AGAIN)
        return min(ready, self.most, self._most_in_time(seen)) if together else 1

    def waits(self, key: Hashable) -> bool:
        """Return whether to delay the next forward pass until more media of the shape ``key`` are queued."""
        return self.most > 1 and self._seen[key].together_is_faster

    def record(self, key: Hashable, count: int, seconds: float) -> None:
        """Record that a forward pass for ``count`` pictures or sounds of the shape ``key`` took ``seconds``."""
        seen = self._seen[key]
        kind, other = (seen.alone, seen.together) if count == 1 else (seen.together, seen.alone)
        kind.record(seconds / count)
        other.since += 1

    def failed(self, key: Hashable) -> None:
        """Record that a batch of pictures or sounds of the shape ``key`` could not be decoded."""
        self.record(key, 2, math.inf)

    def _most_in_time(self, seen: _ShapeTimes) -> int:
        """Return how many pictures or sounds fit into a forward pass within its time limit, judged by ``times``."""
        measured = seen.together if seen.together.forwards and not math.isinf(seen.together.each) else seen.alone
        return max(1, int(min(self.limit_s / measured.each, self.most))) if measured.each else self.most
