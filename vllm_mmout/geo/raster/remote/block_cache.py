"""Class `BlockCache`: thread-safe cache of blocks of a remote file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from vllm_mmout.errors import InputError

BLOCK = 2**16
"""Size in bytes of a block of a remote file. Each request fetches whole blocks, and the cache stores whole blocks."""
_CAPACITY = 2**25
"""Largest number of bytes that the cache of one file keeps."""
_AT_ONCE = 2**23
"""Largest number of bytes in a request. If the connection breaks, at most this many bytes must be fetched again."""
_AHEAD = 2**18
"""Minimum size in bytes of each request when a file is read from front to back.

A request is shorter only at the end of the file or before cached bytes."""

_THREADS = 8
"""Number of threads that fetch blocks in the background before they are read."""


Buffer: TypeAlias = "bytes | memoryview"


@dataclass(eq=False, slots=True)
class _BlockRun:
    """Consecutive blocks of a file that are fetched by one request, and later dropped from the cache together."""

    first: int
    stop: int
    unread: set[int]
    """Indices of the file blocks that were fetched ahead of time and have not been read yet."""
    done: Future[memoryview] = field(default_factory=Future)

    @property
    def count(self) -> int:
        return self.stop - self.first


class BlockCache:
    """Cache of blocks of a remote file. The least recently read blocks are dropped first.

    A block is fetched when it is first read, and only once while the cache keeps it. Blocks fetched ahead and not read
    yet are dropped last. A thread waits for another thread only if that thread is fetching the same block.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], Buffer],
        size: int,
        *,
        block: int = BLOCK,
        capacity: int = _CAPACITY,
        at_once: int = _AT_ONCE,
        ahead: int = _AHEAD,
    ) -> None:
        self.size = size
        self._fetch = fetch
        self._block = block
        self._room = max(1, capacity // block)
        self._longest = max(1, at_once // block)
        self._ahead = max(1, ahead // block)
        self._lock = threading.Lock()
        self._runs: dict[int, _BlockRun] = {}
        """Maps the index of a block to the request for the block, for all cached blocks and blocks being fetched."""
        self._read: OrderedDict[_BlockRun, None] = OrderedDict()
        """Ordered set of cached groups of blocks that have been read, the least recently read group first.

        A full cache drops the first group of this set, or the first group of ``_unread`` if this set is empty.
        """
        self._unread: OrderedDict[_BlockRun, None] = OrderedDict()
        """Finished read-ahead requests with blocks that have not been read yet."""
        self._kept = 0
        """Number of file blocks in the cache, without blocks that are still being fetched."""
        self._pool: ThreadPoolExecutor | None = None

    def view_at(self, at: int, count: int) -> memoryview:
        """Return ``count`` bytes from offset ``at``, or fewer at the end of the file.

        The bytes are not copied if a single request has fetched all of them.
        """
        if at < 0:
            raise ValueError(f"cannot read at the negative offset {at}")
        end = min(at + count, self.size)
        pieces = []
        while at < end:
            start, data = self._run_at(at // self._block, (end - 1) // self._block)
            pieces.append(data[at - start : end - start])
            at = start + len(data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def fetch(self, at: int, count: int) -> None:
        """Fetch ``count`` bytes at offset ``at`` in the background. If that fails, the next read fetches them again."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "mmout-fetch")
        with suppress(RuntimeError):  # closed meanwhile
            self._pool.submit(self._bring, at // self._block, (at + count - 1) // self._block)

    def _bring(self, index: int, last: int) -> None:
        while index <= last:
            with self._lock:
                run = None if index in self._runs else self._claim(index, last, ahead=True)
            if run is not None:
                self._fetched(run)
            index = index + 1 if run is None else run.stop

    def put(self, data: bytes) -> None:
        """Cache ``data``, which was fetched from the beginning of the file. An incomplete last block is dropped."""
        count = -(-self.size // self._block) if len(data) >= self.size else len(data) // self._block
        run = _BlockRun(0, count, set())
        run.done.set_result(memoryview(data)[: count * self._block])
        with self._lock:
            self._runs.update(dict.fromkeys(range(count), run))
            self._keep(run)

    def clear(self) -> None:
        """Drop all cached blocks, and cancel fetches in the background that have not begun."""
        with self._lock:
            for run in [*self._read, *self._unread]:
                self._drop(run)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_at(self, index: int, last_index: int) -> tuple[int, memoryview]:
        """Return file bytes that contain block ``index``, as (offset of the first byte, bytes). Fetch missing bytes.

        The request also covers the uncached blocks that follow, up to block ``last_index``.
        """
        while True:
            with self._lock:
                run = self._runs.get(index)
                if run is None:
                    claimed = self._claim(index, last_index, ahead=False)
                else:
                    self._count_as_read(run, index, last_index)
            if run is None:
                return claimed.first * self._block, self._fetched(claimed)
            try:
                return run.first * self._block, run.done.result()
            except InputError as error:
                raise InputError(str(error)) from error  # a new error, since each thread needs its own traceback
            except CancelledError:  # the thread that was fetching the run was interrupted
                continue

    def _count_as_read(self, run: _BlockRun, index: int, last: int) -> None:
        run.unread.difference_update(range(index, min(last + 1, run.stop)))
        if run in self._unread and not run.unread:
            del self._unread[run]
            self._read[run] = None
        elif run in self._read:
            self._read.move_to_end(run)

    def _claim(self, index: int, last_index: int, *, ahead: bool) -> _BlockRun:
        """Register a request for the uncached blocks from ``index`` to ``last_index``, and return the request.

        No other thread fetches the registered blocks. The caller holds the lock, and then sends the request. The
        request is longer if reading continues after a cached block. It ends before the next cached block and at the
        largest size of a request.
        """
        end = last_index + 1
        if index - 1 in self._runs:
            end = max(end, index + self._ahead)
        end = min(end, index + self._longest, -(-self.size // self._block))
        stop = index + 1
        while stop < end and stop not in self._runs:
            stop += 1
        run = _BlockRun(index, stop, set(range(index, stop)) if ahead else set())
        self._runs.update(dict.fromkeys(range(index, stop), run))
        return run

    def _fetched(self, run: _BlockRun) -> memoryview:
        try:
            data = memoryview(self._fetch(run.first * self._block, min(run.stop * self._block, self.size)))
        except BaseException as error:
            with self._lock:
                self._forget(run)
            if isinstance(error, InputError):
                run.done.set_exception(error)
            else:
                run.done.cancel()
            raise
        run.done.set_result(data)
        with self._lock:
            self._keep(run)
        return data

    def _keep(self, run: _BlockRun) -> None:
        (self._unread if run.unread else self._read)[run] = None
        self._kept += run.count
        while self._kept > self._room:
            self._drop(next(iter(self._read or self._unread)))

    def _drop(self, run: _BlockRun) -> None:
        self._read.pop(run, None)
        self._unread.pop(run, None)
        self._kept -= run.count
        self._forget(run)

    def _forget(self, run: _BlockRun) -> None:
        for index in range(run.first, run.stop):
            self._runs.pop(index, None)
