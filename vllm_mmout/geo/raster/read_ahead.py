"""ReadAhead: has a file that is far away fetch what will be decoded, while what comes before it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Place, Segments

_AHEAD = 2**23
"""Bytes that are on their way, or wait to be decoded, at least; with what waits to be read less than a file keeps."""
_TOGETHER = 2**21
"""Bytes among which those that lie side by side in the file are looked for."""
_TURNS = 256
"""Turns that are looked ahead at most, however little is stored for them."""
_GAP, _LONGEST = 2**14, 2**21
"""Bytes between segments that are fetched along with them, and bytes from which on nothing is joined to a part."""


class ReadAhead:
    """Looks ahead over turns of decoding, each of some segments; each turn's are asked for once."""

    def __init__(self, segments: Segments, turns: Iterable[Sequence[Place]]) -> None:
        self._segments = segments
        self._next = self._asked_together(turns)
        self._waiting: deque[tuple[int, int]] = deque()
        """The first turn behind those that were asked for together, and the bytes of these."""
        self._bytes = 0

    def begin(self, turn: int) -> None:
        """Say that a turn begins: ask for what it and those behind it need, as much as may be on its way."""
        while self._waiting and self._waiting[0][0] <= turn:
            self._bytes -= self._waiting.popleft()[1]
        while self._bytes < _AHEAD and not (self._waiting and self._waiting[-1][0] > turn + _TURNS):
            if (asked := next(self._next, None)) is None:
                return
            self._waiting.append(asked)
            self._bytes += asked[1]

    def _asked_together(self, turns: Iterable[Sequence[Place]]) -> Iterator[tuple[int, int]]:
        """Ask for the next turns' segments; gives the turn behind them and their bytes."""
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
