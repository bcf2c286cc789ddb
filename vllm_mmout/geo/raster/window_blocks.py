"""Collect the decoded pixels of windows in blocks. A block is an array that holds several windows.

The pixels arrive one strip or tile at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from vllm_mmout.geo.raster.raster import Window

_REACH = 2**29
"""Largest total size, in bytes, of the consecutive window arrays (`Block`) that reuse a decoded strip or tile. Later
arrays decode the strip or tile again."""

Empty: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]"
"""Function like `numpy.empty`: takes a shape and a dtype, returns an uninitialized array."""


def bands_last(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an uninitialized array [windows, bands, height, width] with the bands of a pixel adjacent in memory."""
    windows, bands, height, width = shape
    return np.empty((windows, height, width, bands), dtype).transpose(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Slots:
    """Layout of the arrays [windows, bands, height, width] that hold several windows of a raster.

    Windows may be smaller than the height and width of the array.
    """

    size: tuple[int, int] | None = None
    """Height and width in pixels of each array [windows, bands, height, width]. If None, each array holds a single
    window and is as large as this window."""
    count: int = 1
    """Number of windows in each array [windows, bands, height, width]. The last array may have fewer."""
    empty: Empty = np.empty
    """Function that allocates each array [windows, bands, height, width], given its shape and dtype. It may run in
    another thread, one call at a time."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run of consecutive windows that cover the same rows, with equal widths and evenly spaced columns.

    All windows of a run belong to the same `Block`.
    """

    first_window: int
    """Index of the first window of this `Run` (evenly spaced windows) in the list of all windows to read."""
    count: int
    """Number of windows in this `Run` of evenly spaced windows."""
    block_index: int
    """Index of the `Block` (array for several windows) that receives the pixels of all windows in this `Run`."""
    window: Window
    """First window of the run."""
    col_step: int
    """Number of columns from the start of one window to the start of the next, or 1 for a single window."""

    @property
    def end(self) -> int:
        """Index of the column after the last column that the windows cover."""
        return self.window.col + (self.count - 1) * self.col_step + self.window.width

    def column_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of columns that the windows of this `Run` cover, as pairs (first, end), end exclusive.

        If the windows touch or overlap, a single range covers all of them.
        """
        col, width = self.window.col, self.window.width
        if self.col_step <= width:
            yield col, self.end
        else:
            yield from ((at, at + width) for at in range(col, self.end, self.col_step))

    def touched(self, area: Window) -> tuple[int, int]:
        """Return the indices (from 0) of the first and last window of this `Run` that share columns with ``area``.

        The last is less than the first if there is no such window.
        """
        own = self.window
        first = (area.col - own.col - own.width) // self.col_step + 1
        last = (area.col + area.width - 1 - own.col) // self.col_step
        return max(first, 0), min(last, self.count - 1)


def _runs_of(windows: Sequence[Window], count: int) -> list[Run]:
    """Group consecutive windows into as few runs of evenly spaced windows as possible.

    ``count`` is the number of windows in a block. All windows of a run belong to the same block.
    """
    runs: list[Run] = []
    start, step = 0, 0
    for at, (last, window) in enumerate(pairwise([*windows, Window(-1, -1, -1, -1)]), start=1):
        along = window.col - last.col
        alike = (window.row, window.height, window.width) == (last.row, last.height, last.width)
        if alike and at % count and along > 0 and (at - start == 1 or along == step):
            step = along
            continue
        runs.append(Run(start, at - start, start // count, windows[start], step if at - start > 1 else 1))
        start = at
    return runs


@dataclass(frozen=True, slots=True)
class Failure:
    """Error of a window that could not be read."""

    window_index: int
    """Index of the failed window among all windows that are read."""
    task_index: int
    """Index of the failed decoding task, counted from 0 for the task that started first. If several tasks of a window
    fail, this is the lowest of their indices."""
    error: Exception


class Block:
    """Array [windows, bands, height, width] that is filled with the pixels of consecutive windows."""

    def __init__(self, array: NDArray[Any], first: int) -> None:
        self.array = array
        """Pixels [windows, bands, height, width]. A window smaller than the array fills its upper left corner."""
        self.pending = 0
        """Number of planned or running copies of decoded pixels into ``array``. When it is 0, all pixels have
        arrived."""
        self.failure: Failure | None = None
        """Error of the first window in this array that could not be read, or None."""
        self._first = first

    def fail(self, run: Run, area: Window, task_index: int, error: Exception) -> None:
        """Record that decoding ``area`` failed with ``error``, for the windows of ``run`` that overlap ``area``.

        Only the error of the first affected window is kept. ``task_index`` is the index of the decoding task.
        """
        first, last = run.touched(area)
        own = run.window
        if first > last or own.row >= area.row + area.height or area.row >= own.row + own.height:
            return
        failure = Failure(run.first_window + first, task_index, error)
        if self.failure is None or (failure.window_index, task_index) < (
            self.failure.window_index,
            self.failure.task_index,
        ):
            self.failure = failure

    def copy(self, run: Run, area: Window, layers: Sequence[tuple[slice, NDArray[Any]]]) -> None:
        """Copy the decoded pixels of ``area``, a part of the image, into the windows of ``run`` that overlap it.

        Args:
            run: windows of this block.
            area: the part of the image that the pixels cover.
            layers: slices of bands to fill in the block, each with the pixels [rows, columns, bands] to copy there.

        """
        own = run.window
        top, bottom = max(area.row, own.row), min(area.row + area.height, own.row + own.height)
        rows_there, rows_here = slice(top - own.row, bottom - own.row), slice(top - area.row, bottom - area.row)
        first, last = run.touched(area)
        # the windows from `whole` until `after` have all their columns in the area
        whole = max(first, -((own.col - area.col) // run.col_step))
        after = min(last, (area.col + area.width - own.width - own.col) // run.col_step) + 1
        if after <= whole:
            whole = after = first
        for bands, pixels in layers:
            for at in (*range(first, whole), *range(after, last + 1)):
                start = own.col + at * run.col_step
                left, right = max(area.col, start), min(area.col + area.width, start + own.width)
                part = pixels[rows_here, left - area.col : right - area.col].transpose(2, 0, 1)
                self.array[run.first_window - self._first + at, bands, rows_there, left - start : right - start] = part
            if whole < after:
                start = own.col + whole * run.col_step - area.col
                parts = _evenly_spaced(pixels[rows_here], start, own.width, run.col_step, after - whole)
                slots = slice(run.first_window - self._first + whole, run.first_window - self._first + after)
                self.array[slots, bands, rows_there, : own.width] = parts


class Blocks:
    """Collection of `Block` arrays. Each array holds the decoded pixels of several windows.

    An array is allocated at its first use.

    Args:
        windows: all windows to read, in order.
        bands: number of bands.
        dtype: dtype of the pixels.
        slots: layout of windows in a block.

    """

    def __init__(self, windows: Sequence[Window], bands: int, dtype: np.dtype[Any], slots: Slots) -> None:
        self.runs = _runs_of(windows, slots.count)
        """All windows in order, grouped into runs of evenly spaced windows."""
        self._windows, self._bands, self._dtype, self._slots = windows, bands, dtype, slots
        self._number = math.ceil(len(windows) / slots.count)
        self._open: dict[int, Block] = {}
        edges = [(run.block_index, run.window.row, run.window.col) for run in self.runs]
        self._starts = np.array(edges, np.int64).reshape(-1, 3)
        """Start of each run of evenly spaced windows, int64 [runs, 3]: its block index, first row and first column."""
        edges = [(run.block_index + 1, run.window.row + run.window.height, run.end) for run in self.runs]
        self._stops = np.array(edges, np.int64).reshape(-1, 3)
        """End (exclusive) of each run of evenly spaced windows, int64 [runs, 3]: block index, row and column."""
        self.ends = self._all_ends()
        """List that gives, for each block of windows, the index of the first later block that must decode the same
        strips or tiles again."""

    def __len__(self) -> int:
        return self._number

    def opened(self, number: int) -> Block:
        """Return the `Block` with the index ``number``. Allocate the block's array at the first call."""
        if (block := self._open.get(number)) is None:
            array = self._slots.empty(self._shape(number), self._dtype)
            self._open[number] = block = Block(array, number * self._slots.count)
        return block

    def pop(self, number: int) -> Block:
        """Remove the block of windows with the index ``number`` from this collection, and return it."""
        return self._open.pop(number)

    def clear(self) -> None:
        """Drop all blocks."""
        self._open.clear()

    def runs_in(self, area: Window, first_block: int, end_block: int) -> list[tuple[Run, Block]]:
        """Return each `Run` of windows that overlaps ``area``, together with its `Block`, the array that holds the run.

        Only blocks with an index from ``first_block`` to ``end_block`` (exclusive) count.
        """
        starts, stops = (first_block, area.row, area.col), (end_block, area.row + area.height, area.col + area.width)
        overlap = ((self._starts < stops) & (self._stops > starts)).all(axis=1)
        runs = [self.runs[at] for at in np.flatnonzero(overlap).tolist()]
        return [(run, self.opened(run.block_index)) for run in runs]

    def _shape(self, number: int) -> tuple[int, int, int, int]:
        count = self._slots.count
        windows = self._windows[number * count : (number + 1) * count]
        height, width = self._slots.size or (windows[0].height, windows[0].width)
        return len(windows), self._bands, height, width

    def _all_ends(self) -> list[int]:
        sizes = [math.prod(self._shape(number)) * self._dtype.itemsize for number in range(len(self))]
        ends, end, total = [], 0, 0
        for number, nbytes in enumerate(sizes):
            while end < len(sizes) and (end <= number or total + sizes[end] <= _REACH):
                total += sizes[end]
                end += 1
            ends.append(end)
            total -= nbytes
        return ends


def _evenly_spaced(pixels: NDArray[Any], start: int, width: int, step: int, count: int) -> NDArray[Any]:
    """Return evenly spaced column ranges of ``pixels`` [rows, columns, bands] as a view [count, bands, rows, width].

    The first range begins at the column ``start``. Each further range begins ``step`` columns after the previous range.
    """
    rows, _, bands = pixels.shape
    if step == width:  # a reshape takes less time
        parts = pixels[:, start : start + count * width].reshape(rows, count, width, bands)
        return parts.transpose(1, 3, 0, 2)
    part = pixels[:, start : start + width].transpose(2, 0, 1)
    return as_strided(part, (count, *part.shape), (step * pixels.strides[1], *part.strides), writeable=False)
