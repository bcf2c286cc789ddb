"""Class `ReadAhead`: fetch bytes of a remote file while earlier strips or tiles are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Place, Segments

_AHEAD = 2**23
"""Number of bytes of a remote file to request before the decoder needs them.

The file's cache is larger, because it also holds the strips or tiles that are being decoded."""
_TOGETHER = 2**21
"""Number of bytes to collect before they are requested, so that adjacent strips or tiles share a request."""
_TASKS = 256
"""Largest number of decoding tasks whose bytes are requested ahead of time, even if the tasks need few bytes."""
_GAP, _LONGEST = 2**14, 2**21
"""Limits in bytes for reading several strips or tiles by one request. ``_GAP`` is the largest gap between two strips or
tiles. A request of at least ``_LONGEST`` bytes is not extended."""


class ReadAhead:
    """Prefetcher that requests each strip or tile of a remote file once, shortly before the strip or tile is decoded.

    ``tasks`` are the tasks of the decoder in order, each with the segments (strips or tiles) that it decodes.
    """

    def __init__(self, segments: Segments, tasks: Iterable[Sequence[Place]]) -> None:
        self._segments = segments
        self._next = self._request_groups(tasks)
        self._waiting: deque[tuple[int, int]] = deque()
        """Queue of the task groups whose bytes have been requested ahead of time.

        An item is (index of the first task after the group, number of requested bytes)."""
        self._bytes = 0

    def begin(self, task: int) -> None:
        """Record that the task with index ``task`` starts to decode, and fetch strips or tiles for later tasks."""
        while self._waiting and self._waiting[0][0] <= task:
            self._bytes -= self._waiting.popleft()[1]
        while self._bytes < _AHEAD and not (self._waiting and self._waiting[-1][0] > task + _TASKS):
            if (group := next(self._next, None)) is None:
                return
            self._waiting.append(group)
            self._bytes += group[1]

    def _request_groups(self, tasks: Iterable[Sequence[Place]]) -> Iterator[tuple[int, int]]:
        """Request the strips or tiles of decoding tasks. Each step of this generator requests one group of tasks.

        Yield, for each group of consecutive tasks, the index of the first task after the group, and the number of
        requested bytes.
        """
        parts: list[tuple[int, int]] = []
        nbytes = behind = 0
        for behind, places in enumerate(tasks, start=1):
            new = self._segments.stored(places)
            parts += new
            nbytes += sum(count for _, count in new)
            if nbytes >= _TOGETHER or behind % _TASKS == 0:
                yield behind, self._request(parts)
                parts, nbytes = [], 0
        if parts:
            yield behind, self._request(parts)

    def _request(self, parts: Iterable[tuple[int, int]]) -> int:
        joined = list(_joined(parts))
        for at, count in joined:
            self._segments.file.fetch(at, count)
        return sum(count for _, count in joined)


def _joined(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges to read for ``parts``, as (offset, count). Parts that are close together share a range."""
    start = stop = 0
    for at, count in sorted(part for part in parts if part[1]):
        if stop and (at > stop + _GAP or stop - start >= _LONGEST):
            yield start, stop - start
            stop = 0
        start = start if stop else at
        stop = max(stop, at + count)
    if stop:
        yield start, stop - start
