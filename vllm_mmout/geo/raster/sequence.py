"""Windows of one image, read one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.files import THREADS
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.read_ahead import ReadAhead
from vllm_mmout.geo.raster.segments import Segments

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.gdal import GdalParts
    from vllm_mmout.geo.raster.segments import Place

_Segmented: TypeAlias = "Segments | GdalParts"
"""An image that is stored in segments of one size, each decoded as a whole."""
_BATCH = 2**18
"""Bytes, decoded, that are worth a turn of a thread."""
_TURNS_AHEAD, _AHEAD = 4, 2**23 * THREADS
"""Turns for each thread, and bytes, decoded, that may wait to be read, beside what is kept for several windows.

All sequences that are read at once share the bytes: the files of a stack, several scenes.
"""
_WORTH_A_COPY = 0.75
"""What is kept of a segment is copied out where it is less than this part of it."""


def read_windows(
    segments: _Segmented, windows: Sequence[Window], bands: Sequence[int]
) -> Generator[NDArray[Any], None, None]:
    """Read windows of some bands, none twice: the pixels [bands, height, width] of one window after the other.

    A segment stays decoded until the last window that touches it; of it stay the columns that any of the windows has,
    and the bands asked for.
    """
    with closing(_Reader(segments, windows, bands)) as reader:
        for number, window in enumerate(windows):
            yield reader.read(number, window)


@dataclass(frozen=True, slots=True)
class _Kept:
    window: Window
    """Where they lie."""
    pixels: NDArray[Any]
    """Of the bands asked for that its plane has, [bands, rows, columns]."""

    def copy_to(self, target: NDArray[Any], window: Window) -> None:
        """Copy what a window has of this; ``target`` are the same bands of that window."""
        own = self.window
        top, bottom = max(own.row, window.row), min(own.row + own.height, window.row + window.height)
        left, right = max(own.col, window.col), min(own.col + own.width, window.col + window.width)
        target[:, top - window.row : bottom - window.row, left - window.col : right - window.col] = self.pixels[
            :, top - own.row : bottom - own.row, left - own.col : right - own.col
        ]

    def columns(self, first: int, end: int) -> _Kept:
        """What lies between two columns, without the rest in memory where that is much."""
        own = self.window
        left, right = max(own.col, first), min(own.col + own.width, end)
        pixels = self.pixels[:, :, left - own.col : right - own.col]
        if pixels.base is not None and pixels.nbytes < _WORTH_A_COPY * pixels.base.nbytes:
            pixels = pixels.copy()
        return _Kept(Window(own.row, left, own.height, right - left), pixels)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Segments that one thread decodes, one after the other."""

    order: int
    """Its number among the turns, from 0."""
    number: int
    """The first window that needs them."""
    places: Sequence[Place]
    decoded: Future[list[_Kept]] = field(default_factory=Future)


class _Reader:
    """What is decoded, and for how long. Threads decode ahead of what is read, also for the windows that come next."""

    def __init__(self, segments: _Segmented, windows: Sequence[Window], bands: Sequence[int]) -> None:
        self._segments = segments
        self._bands = list(bands)
        self._interleaved = segments.planes == 1
        self._planes = [0] if self._interleaved else self._bands
        self._samples = _as_slice(self._bands) if self._interleaved else slice(1)
        """The bands asked for, of a plane."""
        self._first = min((window.col for window in windows), default=0)
        self._end = max((window.col + window.width for window in windows), default=0)
        self._last = np.full(segments.grid, -1, np.int32)
        """Number of the last window that touches a segment."""
        touched = [self._touched(window) for window in windows]
        for number, place in enumerate(touched):
            self._last[place] = number
        self._kept: dict[Place, _Kept] = {}
        self._turns = self._all_turns(touched)
        self._next = next(self._turns, None)
        self._started: deque[_Turn] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: ReadAhead | None = None
        if isinstance(segments, Segments) and segments.file.far:
            self._ahead = ReadAhead(segments, (turn.places for turn in self._all_turns(touched)))
        _READERS.add(self)

    def read(self, number: int, window: Window) -> NDArray[Any]:
        """One window; they must come in their order."""
        target = np.empty((len(self._bands), window.height, window.width), self._segments.dtype)
        bands_of_planes = target[np.newaxis] if self._interleaved else target[:, np.newaxis]
        layers = dict(zip(self._planes, bands_of_planes, strict=True))
        rows, cols = self._touched(window)
        for place in product(layers, range(rows.start, rows.stop), range(cols.start, cols.stop)):
            if (kept := self._kept.get(place)) is not None:
                kept.copy_to(layers[place[0]], window)
        for turn in self._turns_of(number):
            for place, decoded in zip(turn.places, turn.decoded.result(), strict=True):
                decoded.copy_to(layers[place[0]], window)
                if self._last[place[1:]] > number:
                    self._kept[place] = decoded
        for row, col in np.argwhere(self._last[rows, cols] == number).tolist():
            for plane in layers:
                self._kept.pop((plane, rows.start + row, cols.start + col), None)
        return target

    def close(self) -> None:
        """Drop all, and end the threads."""
        _READERS.discard(self)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._kept.clear()
        self._started.clear()

    def _touched(self, window: Window) -> tuple[slice, slice]:
        height, width = self._segments.block
        return (
            slice(window.row // height, -(-(window.row + window.height) // height)),
            slice(window.col // width, -(-(window.col + window.width) // width)),
        )

    def _all_turns(self, touched: Sequence[tuple[slice, slice]]) -> Iterator[_Turn]:
        """Each segment once, for the first window that touches it."""
        seen = np.zeros(self._segments.grid, np.bool_)
        order = count()
        for number, (rows, cols) in enumerate(touched):
            new = np.argwhere(~seen[rows, cols].T).tolist()
            seen[rows, cols] = True
            for plane in self._planes:
                places = [(plane, rows.start + row, cols.start + col) for col, row in new]
                yield from (_Turn(next(order), number, some) for some in self._cut(places))

    def _cut(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        """Segments, column by column, cut into turns for threads: each of neighbours, with some work in it."""
        size = max(1, _BATCH // max(1, self._segments.bytes))
        start = 0
        for at in range(1, len(places) + 1):
            plane, row, col = places[at - 1]
            if at == len(places) or at - start == size or places[at] != (plane, row + 1, col):
                yield places[start:at]
                start = at

    def _turns_of(self, number: int) -> Iterator[_Turn]:
        """Those that a window is the first to need; others are started meanwhile."""
        self._start(number)
        while self._started and self._started[0].number == number:
            yield self._started.popleft()
            self._start(number)

    def _start(self, number: int) -> None:
        """Have threads decode what a window needs, and as much of the next ones as may wait to be read."""
        while (turn := self._next) is not None and self._is_due(turn, number):
            self._next = next(self._turns, None)
            self._started.append(turn)
            if self._ahead is not None and (turn.order or self._next is not None):  # not for one turn alone
                self._ahead.begin(turn.order)
            if self._pool is None:
                if THREADS < 2 or (len(self._started) == 1 and self._next is None):
                    self._decode(turn)
                    continue
                self._pool = ThreadPoolExecutor(THREADS, "mmout-read")
            self._pool.submit(self._decode, turn)

    def _is_due(self, turn: _Turn, number: int) -> bool:
        if len(self._started) < THREADS and turn.number == number:
            return True
        if THREADS < 2 or len(self._started) >= _TURNS_AHEAD * THREADS:
            return False
        waiting = sum(len(started.places) for started in self._started) + len(turn.places)
        return waiting * self._segments.bytes <= _AHEAD // len(_READERS)

    def _decode(self, turn: _Turn) -> None:
        try:
            stored = zip(turn.places, self._segments.read(turn.places), strict=True)
            turn.decoded.set_result([self._decoded(place, data, turn.number) for place, data in stored])
        except BaseException as error:
            turn.decoded.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _decoded(self, place: Place, data: memoryview | None, number: int) -> _Kept:
        """One segment, which consists of the fill value where the file has none; its own part if windows share it."""
        where = self._segments.window(place)
        if data is None:
            fill = np.array(self._segments.fill).astype(self._segments.dtype)
            bands = len(self._bands) if self._interleaved else 1
            return _Kept(where, np.broadcast_to(fill, (bands, where.height, where.width)))
        pixels = self._segments.decode(place, data)
        decoded = _Kept(where, pixels[:, :, self._samples].transpose(2, 0, 1))
        return decoded.columns(self._first, self._end) if self._last[place[1:]] > number else decoded


_READERS: set[_Reader] = set()
"""Those that are open."""


def _as_slice(bands: list[int]) -> slice | list[int]:
    """Bands as a slice where they lie side by side, which needs no copy."""
    side_by_side = bands == list(range(bands[0], bands[-1] + 1)) if bands else False
    return slice(bands[0], bands[-1] + 1) if side_by_side else bands
