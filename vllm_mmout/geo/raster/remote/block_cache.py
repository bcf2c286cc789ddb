"""BlockCache: bytes that are far away, at any place, for several threads, each block fetched once while it is kept."""

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
"""Bytes of a block: what is fetched begins and ends at multiples of it."""
_CAPACITY = 2**25
_AT_ONCE = 2**23
"""Bytes of one request at most: what a broken connection may cost."""
_AHEAD = 2**18
"""Bytes that are fetched at least where reading goes on behind what is there."""

_THREADS = 8
"""Parts that are fetched at once before they are read."""


Buffer: TypeAlias = "bytes | memoryview"


@dataclass(eq=False, slots=True)
class _Run:
    """Blocks that one request fetches, and that are kept, and let go, together."""

    first: int
    stop: int
    unread: set[int]
    """Those of them that were fetched ahead, and that nobody has read yet."""
    done: Future[memoryview] = field(default_factory=Future)

    @property
    def count(self) -> int:
        """How many they are."""
        return self.stop - self.first


class BlockCache:
    """Reads blocks when they are first asked for, and keeps those asked for last.

    What was fetched ahead and is not read yet goes last of all. Threads do not wait for each other, but for blocks that
    another one is just fetching.
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
        self._runs: dict[int, _Run] = {}
        """By each of their blocks, those that are coming too."""
        self._read: OrderedDict[_Run, None] = OrderedDict()
        """Those that are kept and were read, the last one at the end."""
        self._unread: OrderedDict[_Run, None] = OrderedDict()
        """Those that are kept of which something was not."""
        self._kept = 0
        """Blocks of both."""
        self._pool: ThreadPoolExecutor | None = None

    def view_at(self, at: int, count: int) -> memoryview:
        """The bytes at a place, fewer where the end is reached; no copy where one request has fetched them all."""
        if at < 0:
            raise ValueError(f"there is no place {at}")
        end = min(at + count, self.size)
        pieces = []
        while at < end:
            start, data = self._some(at // self._block, (end - 1) // self._block)
            pieces.append(data[at - start : end - start])
            at = start + len(data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def fetch(self, at: int, count: int) -> None:
        """Fetch bytes in the background that will be read; what fails there is tried again where it is read."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "mmout-fetch")
        with suppress(RuntimeError):  # closed meanwhile
            self._pool.submit(self._bring, at // self._block, (at + count - 1) // self._block)

    def _bring(self, index: int, last: int) -> None:
        while index <= last:
            with self._lock:
                mine = None if index in self._runs else self._claim(index, last, ahead=True)
            if mine is not None:
                self._fetched(mine)
            index = index + 1 if mine is None else mine.stop

    def put(self, data: bytes) -> None:
        """Keep bytes that are known before anything is read, from the start on."""
        count = -(-self.size // self._block) if len(data) >= self.size else len(data) // self._block
        run = _Run(0, count, set())
        run.done.set_result(memoryview(data)[: count * self._block])
        with self._lock:
            self._runs.update(dict.fromkeys(range(count), run))
            self._keep(run)

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            for run in [*self._read, *self._unread]:
                self._drop(run)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _some(self, index: int, last: int) -> tuple[int, memoryview]:
        """The run that a block is in, and where it begins; ``last`` is the last block wanted after it."""
        while True:
            with self._lock:
                run = self._runs.get(index)
                if run is None:
                    mine = self._claim(index, last, ahead=False)
                else:
                    self._count_as_read(run, index, last)
            if run is None:
                return mine.first * self._block, self._fetched(mine)
            try:
                return run.first * self._block, run.done.result()
            except InputError as error:
                raise InputError(str(error)) from error  # one of this thread's own
            except CancelledError:  # the thread that fetched it was interrupted
                continue

    def _count_as_read(self, run: _Run, index: int, last: int) -> None:
        run.unread.difference_update(range(index, min(last + 1, run.stop)))
        if run in self._unread and not run.unread:
            del self._unread[run]
            self._read[run] = None
        elif run in self._read:
            self._read.move_to_end(run)

    def _claim(self, index: int, last: int, *, ahead: bool) -> _Run:
        """Say that a block is fetched here, with those after it that are wanted as well."""
        end = last + 1
        if index - 1 in self._runs:
            end = max(end, index + self._ahead)
        end = min(end, index + self._longest, -(-self.size // self._block))
        stop = index + 1
        while stop < end and stop not in self._runs:
            stop += 1
        run = _Run(index, stop, set(range(index, stop)) if ahead else set())
        self._runs.update(dict.fromkeys(range(index, stop), run))
        return run

    def _fetched(self, run: _Run) -> memoryview:
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

    def _keep(self, run: _Run) -> None:
        (self._unread if run.unread else self._read)[run] = None
        self._kept += run.count
        while self._kept > self._room:
            self._drop(next(iter(self._read or self._unread)))

    def _drop(self, run: _Run) -> None:
        self._read.pop(run, None)
        self._unread.pop(run, None)
        self._kept -= run.count
        self._forget(run)

    def _forget(self, run: _Run) -> None:
        for index in range(run.first, run.stop):
            self._runs.pop(index, None)
