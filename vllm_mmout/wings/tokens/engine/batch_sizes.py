"""Choose how many pictures or sounds to decode in one forward pass, from measured times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_RETIME_AFTER = 64
"""Number of forward passes after which the slower of two methods is timed again: decoding pictures or sounds one by
one, or in batches."""
_WEIGHT = 0.5
"""Weight, 0 to 1, of the latest measurement in the moving average of decoding times."""


@dataclass(slots=True)
class _ForwardTimes:
    """Moving average of decoding times by one method: one picture or sound at a time, or in batches."""

    forwards: int = 0
    mean_seconds: float = 0.0
    """Average seconds per picture or sound. Infinity if the last forward pass failed."""
    passes_since: int = 0
    """Number of forward passes since this decoding method was last used.

    A method decodes pictures or sounds either one at a time, or in batches."""

    def record(self, seconds: float) -> None:
        self.forwards += 1
        self.passes_since = 0
        fresh = self.forwards <= 2 or math.isinf(self.mean_seconds)
        self.mean_seconds = seconds if fresh else (1 - _WEIGHT) * self.mean_seconds + _WEIGHT * seconds


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
        return self.together.mean_seconds <= self.alone.mean_seconds


class BatchSizes:
    """Policy that chooses how many pictures or sounds the decoder processes in one forward pass.

    It tries both, keeps the faster, and tries the other again now and then. The first forward pass is slower than later
    passes, so both are tried twice. ``most`` is the maximum number of pictures or sounds in a forward pass, and
    ``limit_s`` its time limit in seconds.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self.limit_s = limit_s
        self._times: defaultdict[Hashable, _ShapeTimes] = defaultdict(_ShapeTimes)

    def size(self, key: Hashable, ready: int) -> int:
        """Return how many of ``ready`` pictures or sounds of the shape ``key`` to decode in the next forward pass."""
        if self.most == 1 or ready <= 1:
            return 1
        times = self._times[key]
        other = times.alone if times.together_is_faster else times.together
        together = times.together_is_faster is (other.passes_since < _RETIME_AFTER)
        return min(ready, self.most, self._most_in_time(times)) if together else 1

    def waits(self, key: Hashable) -> bool:
        """Return whether to delay the next forward pass until more media of the shape ``key`` are queued."""
        return self.most > 1 and self._times[key].together_is_faster

    def record(self, key: Hashable, count: int, seconds: float) -> None:
        """Record that a forward pass for ``count`` pictures or sounds of the shape ``key`` took ``seconds``."""
        times = self._times[key]
        kind, other = (times.alone, times.together) if count == 1 else (times.together, times.alone)
        kind.record(seconds / count)
        other.passes_since += 1

    def failed(self, key: Hashable) -> None:
        """Record that a batch of pictures or sounds of the shape ``key`` could not be decoded."""
        self.record(key, 2, math.inf)

    def _most_in_time(self, times: _ShapeTimes) -> int:
        """Estimate how many pictures or sounds a forward pass can decode within the time limit ``limit_s``.

        ``times`` are the times measured so far.
        """
        measured = (
            times.together if times.together.forwards and not math.isinf(times.together.mean_seconds) else times.alone
        )
        return max(1, int(min(self.limit_s / measured.mean_seconds, self.most))) if measured.mean_seconds else self.most
