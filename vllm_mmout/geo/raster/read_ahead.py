"""ReadAhead: has a file that is far away fetch what the next windows need, while those before are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Segments

_AHEAD = 2**23
"""Bytes that are on their way, or wait to be decoded, at least; with what waits to be read less than a file keeps."""


_GAP, _LONGEST = 2**14, 2**21
"""Bytes between segments that are fetched along with them, and bytes from which on nothing is joined to a part."""


class ReadAhead:
    """Looks ahead over windows that are read one after the other; each segment is asked for once."""

    def __init__(self, segments: Segments, touched: Sequence[tuple[slice, slice]], planes: Sequence[int]) -> None:
        self._segments = segments
        self._touched = touched
        """Rows and columns of segments that each window touches."""
        self._planes = planes
        self._asked = np.zeros(segments.grid, np.bool_)
        self._waiting: deque[tuple[int, int]] = deque()
        """Windows whose segments were asked for, and the bytes of those."""
        self._bytes = 0
        self._next = 0

    def behind(self, number: int) -> None:
        """Ask for what the windows behind this one need, as much as may be on its way."""
        while self._waiting and self._waiting[0][0] <= number:
            self._bytes -= self._waiting.popleft()[1]
        while self._next <= number:
            self._asked[self._touched[self._next]] = True  # the window that is read now
            self._next += 1
        while self._next < len(self._touched) and self._bytes < _AHEAD:
            rows, cols = self._touched[self._next]
            new = np.argwhere(~self._asked[rows, cols]).tolist()
            self._asked[rows, cols] = True
            parts = self._segments.stored(
                (plane, rows.start + row, cols.start + col) for plane in self._planes for row, col in new
            )
            nbytes = 0
            for at, count in _joined(parts):
                self._segments.file.fetch(at, count)
                nbytes += count
            self._waiting.append((self._next, nbytes))
            self._bytes += nbytes
            self._next += 1


def _joined(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Places and numbers of bytes, those joined that lie close together; none of what is not stored."""
    start = stop = 0
    for at, count in sorted(part for part in parts if part[1]):
        if stop and (at > stop + _GAP or stop - start >= _LONGEST):
            yield start, stop - start
            stop = 0
        start = start if stop else at
        stop = max(stop, at + count)
    if stop:
        yield start, stop - start
