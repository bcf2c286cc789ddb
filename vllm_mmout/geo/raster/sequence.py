"""Read a sequence of windows of one image, while threads decode strips or tiles for the next windows."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import MMOutError
from vllm_mmout.geo.raster.files import READ_AHEAD_BYTES, THREADS
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.read_ahead import ReadAhead
from vllm_mmout.geo.raster.scratch import Scratch
from vllm_mmout.geo.raster.segments import Segments
from vllm_mmout.geo.raster.window_blocks import Block, Blocks, Run, Slots

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segmented_image import SegmentedImage
    from vllm_mmout.geo.raster.segments import Place

_BATCH = 2**19
"""Number of decoded bytes per task of a decoding thread."""
_TASKS_AHEAD = 4
"""Largest number of decoding tasks per thread that may start before the caller requests their windows."""


def read_windows(
    segments: SegmentedImage, windows: Sequence[Window], bands: Sequence[int]
) -> Generator[NDArray[Any], None, None]:
    """Yield the pixels [bands, height, width] of each window in turn. ``bands`` are indices without repetition."""
    with closing(read_blocks(segments, windows, bands, Slots())) as arrays:
        for array in arrays:
            yield array[0]


def read_blocks(
    segments: SegmentedImage, windows: Sequence[Window], bands: Sequence[int], slots: Slots
) -> Generator[NDArray[Any], None, None]:
    """Yield the pixels of ``windows`` in arrays [windows, bands, height, width] of ``slots.count`` windows each.

    If a window cannot be read, raise the error in place of its array, with the index of the window as ``tile``.
    """
    blocks = Blocks(windows, len(bands), segments.dtype, slots)
    with closing(_Reader(segments, blocks, bands)) as reader:
        yield from reader.arrays()


@dataclass(frozen=True, slots=True)
class _Task:
    """Task for one thread: decode vertically adjacent strips or tiles, and copy pixels to the requested windows."""

    index: int
    """Index of this decoding task, in the order of start, from 0."""
    first_block: int
    """Index of the first `Block` (array of windows) that this task may copy pixels to."""
    end_block: int
    """Index after the last `Block` (array of windows) that this task may copy pixels to."""
    places: Sequence[Place]
    """Strips or tiles to decode, vertically adjacent in the image."""
    area: Window
    """Window of the image that the strips or tiles of this task cover."""


_RunsAndBlocks: TypeAlias = "Sequence[tuple[Run, Block]]"
"""Pairs of a `Run` (consecutive windows) and its `Block` (array for the windows' pixels), for one decoding task."""


class _Reader:
    """Reader that yields the windows of an image in arrays, while threads decode the windows of later arrays."""

    def __init__(self, segments: SegmentedImage, blocks: Blocks, bands: Sequence[int]) -> None:
        self._segments = segments
        self._blocks = blocks
        self._layers = _layers(bands, segments.planes)
        tasks = self._all_tasks()
        self._next, second = next(tasks, None), next(tasks, None)
        self._tasks = tasks if second is None else chain([second], tasks)
        self._current = 0
        """Index of the `Block` (array of several windows) that the caller is waiting for."""
        self._decoded_ahead: deque[_Task] = deque()
        """Decoding tasks that were started before the caller requested their windows."""
        self._failure: BaseException | None = None
        """Unexpected error in a thread, which stops the reader. `Block.failure` holds errors of single windows."""
        self._scratches: list[Scratch] = []
        """Decoding buffers that no thread is using."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._working = 0
        """Number of threads that are decoding."""
        self._pool = None if THREADS < 2 or second is None else ThreadPoolExecutor(THREADS, "mmout-read")
        self._ahead: ReadAhead | None = None
        if isinstance(segments, Segments) and segments.file.is_remote and second is not None:
            self._ahead = ReadAhead(segments, (task.places for task in self._all_tasks()))
        _READERS.add(self)

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the pixels [windows, bands, height, width] of `Slots.count` consecutive windows at a time."""
        for number in range(len(self._blocks)):
            with self._lock:
                self._current = number
                while self._decoded_ahead and self._decoded_ahead[0].first_block <= number:
                    self._decoded_ahead.popleft()
                while self._pool is not None and self._working < THREADS and self._may_start_next():
                    self._working += 1
                    self._pool.submit(self._work)
            if self._pool is None:
                self._working += 1
                self._work()
            block = self._wait_for_block(number)
            if block.failure is not None:
                if isinstance(block.failure.error, MMOutError):
                    block.failure.error.tile = block.failure.window_index
                raise block.failure.error
            yield block.array

    def close(self) -> None:
        """Stop the decoding threads and drop all decoded pixels."""
        _READERS.discard(self)
        with self._lock:
            self._next = None
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._blocks.clear()
        self._scratches.clear()

    def _wait_for_block(self, number: int) -> Block:
        """Wait until all pixels of the `Block` with the index ``number`` have arrived, and return it."""
        with self._lock:
            block = self._blocks.opened(number)
            while self._failure is None and (
                block.pending or (self._next is not None and self._next.first_block <= number)
            ):
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            return self._blocks.pop(number)

    def _all_tasks(self) -> Iterator[_Task]:
        """Yield all decoding tasks. The tasks for the first windows come first.

        If another block of windows needs a segment much later (see `Blocks.ends`), another task decodes it again.
        """
        height, width = self._segments.block
        reached = np.zeros(self._segments.grid, np.int64)  # index after the last block that has a segment's pixels
        order = count()
        for run in self._blocks.runs:
            first, window = run.block_index, run.window
            rows = slice(window.row // height, -(-(window.row + window.height) // height))
            for left, right in run.column_ranges():
                cols = slice(left // width, -(-right // width))
                new = reached[rows, cols] <= first
                reached[rows, cols][new] = end = self._blocks.ends[first]
                found = [(rows.start + row, cols.start + col) for col, row in np.argwhere(new.T).tolist()]
                for plane in self._layers:
                    for places in self._batches([(plane, row, col) for row, col in found]):
                        yield _Task(next(order), first, end, places, self._area(places))

    def _batches(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        """Split segments, sorted column by column, into batches of vertical neighbours of about `_BATCH` bytes."""
        size = max(1, _BATCH // max(1, self._segments.bytes))
        start = 0
        for at in range(1, len(places) + 1):
            plane, row, col = places[at - 1]
            if at == len(places) or at - start == size or places[at] != (plane, row + 1, col):
                yield places[start:at]
                start = at

    def _may_start_next(self) -> bool:
        task = self._next
        if task is None or task.first_block <= self._current:
            return task is not None
        if self._pool is None or len(self._decoded_ahead) >= _TASKS_AHEAD * THREADS:
            return False
        waiting = sum(len(begun.places) for begun in self._decoded_ahead) + len(task.places)
        return waiting * self._segments.bytes <= READ_AHEAD_BYTES // max(1, len(_READERS))

    def _work(self) -> None:
        """Decode until no task is left, or until the limit for decoding ahead of the caller is reached."""
        with self._lock:
            scratch = self._scratches.pop() if self._scratches else Scratch()
        try:
            while (work := self._take_task()) is not None:
                self._decode(*work, scratch)
        except BaseException as error:
            with self._lock:
                self._working -= 1
                self._failure = error
                self._changed.notify_all()
            if not isinstance(error, Exception):
                raise
        with self._lock:
            self._scratches.append(scratch)

    def _take_task(self) -> tuple[_Task, _RunsAndBlocks] | None:
        """Return the next task and the windows that need it. Return None if the calling thread must stop decoding.

        The thread must stop if no task is left, or if the limit for decoding ahead of the caller is reached.
        """
        with self._lock:
            task = self._next
            if task is None or not self._may_start_next():
                self._working -= 1  # under this lock, so that `arrays` cannot count on a thread that is about to end
                return None
            self._next = next(self._tasks, None)
            if task.first_block > self._current:
                self._decoded_ahead.append(task)
            runs = self._blocks.runs_in(task.area, task.first_block, task.end_block)
            for _, block in runs:
                block.pending += 1
            if self._ahead is not None:
                self._ahead.begin(task.index)
            return task, runs

    def _area(self, places: Sequence[Place]) -> Window:
        """Return the window of the image that vertically adjacent segments cover."""
        first, last = self._segments.window(places[0]), self._segments.window(places[-1])
        return Window(first.row, first.col, last.row + last.height - first.row, first.width)

    def _decode(self, task: _Task, runs: _RunsAndBlocks, scratch: Scratch) -> None:
        """Decode the strips or tiles of ``task``, and copy the pixels to the windows of each `Run` in ``runs``."""
        try:
            pixels = self._pixels(task, runs, scratch)
            if pixels is not None:
                layers = [(there, pixels[:, :, here]) for there, here in self._layers[task.places[0][0]]]
                for run, block in runs:
                    block.copy(run, task.area, layers)
        finally:
            with self._lock:
                for _, block in runs:
                    block.pending -= 1
                if not runs or not all(
                    block.pending for _, block in runs
                ):  # waking a thread in vain would delay the others
                    self._changed.notify_all()

    def _pixels(self, task: _Task, runs: _RunsAndBlocks, scratch: Scratch) -> NDArray[Any] | None:
        """Read and decode the strips or tiles of a task to pixels [rows, columns, bands]. Return None if reading fails.

        If a segment cannot be decoded, record the error for the windows that need it. Its pixels are then arbitrary.
        """
        area = task.area
        joint: NDArray[Any] | None = None
        try:
            stored = self._segments.read(task.places, scratch)
        except Exception as error:  # noqa: BLE001 - raised when a window that needs the segments is read
            self._fail(area, task, runs, error)
            return None
        for place, data in zip(task.places, stored, strict=True):
            own = self._segments.window(place)
            try:
                pixels = self._not_stored(own) if data is None else self._segments.decode(place, data, scratch)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(own, task, runs, error)
                continue
            if len(task.places) == 1:
                return pixels
            if joint is None:
                shape = (area.height, area.width, pixels.shape[2])
                joint = scratch.take("joint", math.prod(shape) * pixels.itemsize).view(pixels.dtype).reshape(shape)
            joint[own.row - area.row : own.row - area.row + own.height] = pixels
        return joint

    def _not_stored(self, area: Window) -> NDArray[Any]:
        """Return the pixels of a strip or tile that the file does not store. All of them have the fill value."""
        fill = np.array(self._segments.fill).astype(self._segments.dtype)
        bands = max(here.stop for layers in self._layers.values() for _, here in layers)
        return np.broadcast_to(fill, (area.height, area.width, bands))

    def _fail(self, area: Window, task: _Task, runs: _RunsAndBlocks, error: Exception) -> None:
        """Record that decoding ``area`` failed with ``error``, for each window in ``runs`` that overlaps ``area``."""
        with self._lock:
            for run, block in runs:
                block.fail(run, area, task.index, error)


_READERS: set[_Reader] = set()
"""All readers that are open in this process. They share the limit `READ_AHEAD_BYTES`."""


def _layers(bands: Sequence[int], planes: int) -> dict[int, list[tuple[slice, slice]]]:
    """Return, for each plane to read, the bands to copy: pairs of slices (output bands, bands of a strip or tile).

    A plane has several pairs if the bands to copy are not adjacent in the strip or tile.
    """
    if planes > 1:
        return {band: [(slice(at, at + 1), slice(0, 1))] for at, band in enumerate(bands)}
    starts = [at for at, band in enumerate(bands) if not at or band != bands[at - 1] + 1]
    ends = [*starts[1:], len(bands)]
    return {0: [(slice(at, end), slice(bands[at], bands[at] + end - at)) for at, end in zip(starts, ends, strict=True)]}
