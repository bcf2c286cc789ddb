"""The class `ReadAhead`, which fetches bytes of a remote file while earlier segments are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Place, Segments

_AHEAD = 2**23
"""Bytes that are fetched ahead at least. Together with decoded segments, they must fit into the file's cache."""
_TOGETHER = 2**21
"""Bytes of segments that are requested together, so that adjacent segments are joined to one request."""
_TURNS = 256
"""Largest number of turns to look ahead, however few bytes are stored for them."""
_GAP, _LONGEST = 2**14, 2**21
"""Largest gap in bytes between segments fetched by one request, and the request size in bytes that ends joining."""


class ReadAhead:
    """A prefetcher for the turns (tasks of some segments each) of a decoder, which requests each segment once."""

    def __init__(self, segments: Segments, turns: Iterable[Sequence[Place]]) -> None:
        self._segments = segments
        self._next = self._asked_together(turns)
        self._waiting: deque[tuple[int, int]] = deque()
        """Groups of turns requested together: index of the first turn after the group, and bytes of the group."""
        self._bytes = 0

    def begin(self, turn: int) -> None:
        """Record that a turn begins, and request the bytes of this and later turns up to the limit."""
        while self._waiting and self._waiting[0][0] <= turn:
            self._bytes -= self._waiting.popleft()[1]
        while self._bytes < _AHEAD and not (self._waiting and self._waiting[-1][0] > turn + _TURNS):
            if (group := next(self._next, None)) is None:
                return
            self._waiting.append(group)
            self._bytes += group[1]

    def _asked_together(self, turns: Iterable[Sequence[Place]]) -> Iterator[tuple[int, int]]:
        """Request the segments of groups of turns; yield the index of the turn after each group, and its bytes."""
        parts: list[tuple[int, int]] = []
        nbytes = behind = 0
        for behind, places in enumerate(turns, start=1):
            new = self._segments.stored(places)
            parts += new
            nbytes += sum(count for _, count in new)
            if nbytes >= _TOGETHER or behind % _TURNS == 0:
                yield behind, self._ask(parts)
                parts, nbytes = [], 0
        if parts:
            yield behind, self._ask(parts)

    def _ask(self, parts: Iterable[tuple[int, int]]) -> int:
        joined = list(_joined(parts))
        for at, count in joined:
            self._segments.file.fetch(at, count)
        return sum(count for _, count in joined)


def _joined(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the (offset, count) of byte ranges that cover all stored parts, with parts close together joined."""
    start = stop = 0
    for at, count in sorted(part for part in parts if part[1]):
        if stop and (at > stop + _GAP or stop - start >= _LONGEST):
            yield start, stop - start
            stop = 0
        start = start if stop else at
        stop = max(stop, at + count)
    if stop:
        yield start, stop - start
