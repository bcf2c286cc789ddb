"""Reading of a sequence of windows from one image, with decoding ahead by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, product
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.files import THREADS
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.read_ahead import ReadAhead
from vllm_mmout.geo.raster.segments import Segments

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Place

_BATCH = 2**18
"""Decoded bytes that make up one turn (task) of a thread."""
_TURNS_AHEAD, _AHEAD = 4, 2**23 * THREADS
"""Turns per thread, and decoded bytes, that may wait to be read, besides the segments kept for several windows.

All sequences read at the same time (the files of a stack, several scenes) share the bytes.
"""
_WORTH_A_COPY = 0.75
"""Fraction of a segment below which the part to keep is copied, so that the rest is freed."""


class SegmentedImage(Protocol):
    """An image stored in segments of equal size, each decoded whole."""

    planes: int
    """Number of planes stored one after the other. With one plane, a segment holds all bands."""
    dtype: np.dtype[Any]
    grid: tuple[int, int]
    """Rows and columns of the grid of segments in one plane."""
    bytes: int
    """Bytes of a decoded segment."""
    fill: float
    """Value of all pixels of a segment that is not stored."""

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of a segment, in pixels."""

    def window(self, place: Place) -> Window:
        """Return the window of the image that a segment covers."""

    def read(self, places: Sequence[Place]) -> Sequence[memoryview | None]:
        """Return the stored bytes of segments, None for a segment that is not stored."""

    def decode(self, place: Place, data: memoryview) -> NDArray[Any]:
        """Return the pixels [rows, columns, bands] of a segment from its stored bytes."""


def read_windows(
    segments: SegmentedImage, windows: Sequence[Window], bands: Sequence[int]
) -> Generator[NDArray[Any], None, None]:
    """Yield the pixels [bands, height, width] of each window in turn. ``bands`` are indices without repetition.

    A decoded segment is kept until the last window that touches it was read, but only with the given bands and the
    columns between the leftmost and rightmost window.
    """
    with closing(_Reader(segments, windows, bands)) as reader:
        for number, window in enumerate(windows):
            yield reader.read(number, window)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The decoded pixels of a segment, or of a part of it."""

    window: Window
    """Window of the image that the pixels cover."""
    pixels: NDArray[Any]
    """Pixels [bands, rows, columns] of the requested bands in the segment's plane."""

    def copy_to(self, target: NDArray[Any], window: Window) -> None:
        """Copy the pixels inside ``window`` to ``target``, the array of the same bands of that window."""
        own = self.window
        top, bottom = max(own.row, window.row), min(own.row + own.height, window.row + window.height)
        left, right = max(own.col, window.col), min(own.col + own.width, window.col + window.width)
        target[:, top - window.row : bottom - window.row, left - window.col : right - window.col] = self.pixels[
            :, top - own.row : bottom - own.row, left - own.col : right - own.col
        ]

    def columns(self, first: int, end: int) -> _Kept:
        """Return the part between two columns, as a copy if that frees much memory."""
        own = self.window
        left, right = max(own.col, first), min(own.col + own.width, end)
        pixels = self.pixels[:, :, left - own.col : right - own.col]
        if pixels.base is not None and pixels.nbytes < _WORTH_A_COPY * pixels.base.nbytes:
            pixels = pixels.copy()
        return _Kept(Window(own.row, left, own.height, right - left), pixels)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A task for one thread: segments to decode one after the other."""

    order: int
    """Index among all turns, from 0."""
    number: int
    """Index of the first window that needs the segments."""
    places: Sequence[Place]
    """Segments to decode."""
    decoded: Future[list[_Kept]] = field(default_factory=Future)
    """Decoded pixels of each segment."""


class _Reader:
    """A reader of windows in order, whose threads decode ahead for the current and the following windows."""

    def __init__(self, segments: SegmentedImage, windows: Sequence[Window], bands: Sequence[int]) -> None:
        self._segments = segments
        self._bands = list(bands)
        self._interleaved = segments.planes == 1
        self._planes = [0] if self._interleaved else self._bands
        self._samples = _as_slice(self._bands) if self._interleaved else slice(1)
        """Index of the requested bands within a decoded plane."""
        self._first = min((window.col for window in windows), default=0)
        self._end = max((window.col + window.width for window in windows), default=0)
        self._last = np.full(segments.grid, -1, np.int32)
        """Index of the last window that touches each segment."""
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
        """Return the pixels of a window. Windows must be read in their order, ``number`` from 0."""
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
        """Drop all decoded pixels and stop the threads."""
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
        """Yield turns that contain each segment once, for the first window that touches the segment."""
        seen = np.zeros(self._segments.grid, np.bool_)
        order = count()
        for number, (rows, cols) in enumerate(touched):
            new = np.argwhere(~seen[rows, cols].T).tolist()
            seen[rows, cols] = True
            for plane in self._planes:
                places = [(plane, rows.start + row, cols.start + col) for col, row in new]
                yield from (_Turn(next(order), number, some) for some in self._cut(places))

    def _cut(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        """Split segments, sorted column by column, into runs of vertical neighbours of about `_BATCH` bytes."""
        size = max(1, _BATCH // max(1, self._segments.bytes))
        start = 0
        for at in range(1, len(places) + 1):
            plane, row, col = places[at - 1]
            if at == len(places) or at - start == size or places[at] != (plane, row + 1, col):
                yield places[start:at]
                start = at

    def _turns_of(self, number: int) -> Iterator[_Turn]:
        """Yield the turns whose first window is ``number``, and keep starting later turns meanwhile."""
        self._start(number)
        while self._started and self._started[0].number == number:
            yield self._started.popleft()
            self._start(number)

    def _start(self, number: int) -> None:
        """Submit the turns of a window to the threads, and as many later turns as may wait to be read."""
        while (turn := self._next) is not None and self._is_due(turn, number):
            self._next = next(self._turns, None)
            self._started.append(turn)
            if self._ahead is not None and (turn.order or self._next is not None):  # a single turn needs no read-ahead
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
        """Return a decoded segment, cut to the needed columns if kept for later; the fill value if it is not stored."""
        where = self._segments.window(place)
        if data is None:
            fill = np.array(self._segments.fill).astype(self._segments.dtype)
            bands = len(self._bands) if self._interleaved else 1
            return _Kept(where, np.broadcast_to(fill, (bands, where.height, where.width)))
        pixels = self._segments.decode(place, data)
        decoded = _Kept(where, pixels[:, :, self._samples].transpose(2, 0, 1))
        return decoded.columns(self._first, self._end) if self._last[place[1:]] > number else decoded


_READERS: set[_Reader] = set()
"""All open readers, which share `_AHEAD`."""


def _as_slice(bands: list[int]) -> slice | list[int]:
    """Return consecutive bands as a slice, which indexes without a copy; other bands unchanged."""
    side_by_side = bands == list(range(bands[0], bands[-1] + 1)) if bands else False
    return slice(bands[0], bands[-1] + 1) if side_by_side else bands
