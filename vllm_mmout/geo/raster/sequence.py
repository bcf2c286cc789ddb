"""Windows of one image, read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
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

_Layers: TypeAlias = "Sequence[NDArray[Any]]"
"""Bands, each [rows, columns]."""
_Segmented: TypeAlias = "Segments | GdalParts"
"""An image that is stored in segments of one size, each decoded as a whole."""
_BATCH = 2**18
"""Bytes, decoded, that are worth a turn of a thread."""
_WORTH_A_COPY = 0.75
"""What is kept of a segment is copied out where it is less than this part of it."""


def read_windows(
    segments: _Segmented, windows: Sequence[Window], bands: Sequence[int], threads: int = THREADS
) -> Generator[NDArray[Any], None, None]:
    """Read windows of some bands, none twice: the pixels [bands, height, width] of one window after the other.

    A segment stays decoded until the last window that touches it; of it stay the columns that any of the windows has,
    and the bands asked for.
    """
    with closing(_Reader(segments, windows, bands, threads)) as reader:
        for number, window in enumerate(windows):
            yield reader.read(number, window)


@dataclass(frozen=True, slots=True)
class _Kept:
    window: Window
    """Where they lie."""
    layers: _Layers
    """The bands asked for that its plane has."""

    def copy_to(self, target: _Layers, window: Window) -> None:
        """Copy what a window has of this; ``target`` are the same bands of that window."""
        own = self.window
        top, bottom = max(own.row, window.row), min(own.row + own.height, window.row + window.height)
        left, right = max(own.col, window.col), min(own.col + own.width, window.col + window.width)
        there = slice(top - window.row, bottom - window.row), slice(left - window.col, right - window.col)
        here = slice(top - own.row, bottom - own.row), slice(left - own.col, right - own.col)
        for layer, band in zip(self.layers, target, strict=True):
            band[there] = layer[here]

    def columns(self, first: int, end: int) -> _Kept:
        """What lies between two columns, without the rest in memory where that is much."""
        own = self.window
        left, right = max(own.col, first), min(own.col + own.width, end)
        layers = [layer[:, left - own.col : right - own.col] for layer in self.layers]
        base = layers[0].base
        if base is not None and sum(layer.nbytes for layer in layers) < _WORTH_A_COPY * base.nbytes:
            layers = [layer.copy() for layer in layers]
        return _Kept(Window(own.row, left, own.height, right - left), layers)


class _Reader:
    """What is decoded, and for how long."""

    def __init__(
        self, segments: Segments | GdalParts, windows: Sequence[Window], bands: Sequence[int], threads: int
    ) -> None:
        self._segments = segments
        self._threads = threads
        self._bands = list(bands)
        self._interleaved = segments.planes == 1
        self._samples = self._bands if self._interleaved else [0]
        self._first = min((window.col for window in windows), default=0)
        self._end = max((window.col + window.width for window in windows), default=0)
        self._last = np.full(segments.grid, -1, np.int32)
        """Number of the last window that touches a segment."""
        for number, window in enumerate(windows):
            self._last[self._touched(window)] = number
        self._kept: dict[Place, _Kept] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: ReadAhead | None = None
        if isinstance(segments, Segments) and segments.file.far:
            touched = [self._touched(window) for window in windows]
            self._ahead = ReadAhead(segments, touched, [0] if self._interleaved else self._bands)

    def read(self, number: int, window: Window) -> NDArray[Any]:
        """One window; they must come in their order."""
        if self._ahead is not None:
            self._ahead.behind(number)
        target = np.empty((len(self._bands), window.height, window.width), self._segments.dtype)
        rows, cols = self._touched(window)
        turns = []
        for plane, bands in self._planes(target):
            for col in range(cols.start, cols.stop):
                missing = self._from_kept(plane, rows, col, bands, window)
                turns += [partial(self._decode, turn, bands, number, window) for turn in self._turns(missing)]
        self._run(turns)
        for row, col in np.argwhere(self._last[rows, cols] == number).tolist():
            for plane, _ in self._planes(target):
                self._kept.pop((plane, rows.start + row, cols.start + col), None)
        return target

    def close(self) -> None:
        """Drop all, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._kept.clear()

    def _touched(self, window: Window) -> tuple[slice, slice]:
        height, width = self._segments.block
        return (
            slice(window.row // height, -(-(window.row + window.height) // height)),
            slice(window.col // width, -(-(window.col + window.width) // width)),
        )

    def _planes(self, target: NDArray[Any]) -> list[tuple[int, _Layers]]:
        """The planes to read, each with the bands of a window that it has."""
        if self._interleaved:
            return [(0, list(target))]
        return [(band, [target[index]]) for index, band in enumerate(self._bands)]

    def _from_kept(self, plane: int, rows: slice, col: int, bands: _Layers, window: Window) -> list[Place]:
        """Copy what is kept of one column of the grid; the rest is the result."""
        missing = []
        for row in range(rows.start, rows.stop):
            kept = self._kept.get((plane, row, col))
            if kept is None:
                missing.append((plane, row, col))
            else:
                kept.copy_to(bands, window)
        return missing

    def _turns(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        """Segments of one column, cut into turns for threads: each of neighbours, with some work in it."""
        size = max(1, _BATCH // max(1, self._segments.bytes))
        start = 0
        for at in range(1, len(places) + 1):
            if at == len(places) or at - start == size or places[at][1] != places[at - 1][1] + 1:
                yield places[start:at]
                start = at

    def _run(self, turns: Sequence[Callable[[], None]]) -> None:
        if len(turns) < 2 or self._threads < 2:
            for turn in turns:
                turn()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "mmout-read")
        for _ in self._pool.map(lambda turn: turn(), turns):
            pass

    def _decode(self, places: Sequence[Place], bands: _Layers, number: int, window: Window) -> None:
        """Decode neighbours of one column into a window, and keep those that a later one needs."""
        for place, data in zip(places, self._segments.read(places), strict=True):
            decoded = self._decoded(place, data)
            decoded.copy_to(bands, window)
            if data is not None and self._last[place[1:]] > number:
                self._kept[place] = decoded.columns(self._first, self._end)

    def _decoded(self, place: Place, data: bytes | None) -> _Kept:
        """One segment, which consists of the fill value where the file has none."""
        where = self._segments.window(place)
        if data is None:
            fill = np.array(self._segments.fill).astype(self._segments.dtype)
            return _Kept(where, [np.broadcast_to(fill, (where.height, where.width))] * len(self._samples))
        pixels = self._segments.decode(place, data)
        return _Kept(where, [pixels[:, :, sample] for sample in self._samples])
