"""BlockCache: bytes that are far away, at any place, for several threads, each block fetched once while it is kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class _Run:
    first: int
    stop: int
    ahead: bool
    """Whether nobody reads it yet."""
    done: Future[bytes] = field(default_factory=Future)


class BlockCache:
    """Reads blocks when they are first asked for, and keeps those asked for last.

    What was fetched ahead and is not read yet goes last of all. Threads do not wait for each other, but for blocks that
    another one is just fetching.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
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
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        """Blocks that were read, the last one at the end."""
        self._unread: OrderedDict[int, bytes] = OrderedDict()
        """Those that were fetched ahead."""
        self._coming: dict[int, _Run] = {}
        self._pool: ThreadPoolExecutor | None = None

    def read_at(self, at: int, count: int) -> bytes:
        """The bytes at a place; fewer where the end is reached."""
        if at < 0:
            raise ValueError(f"there is no place {at}")
        end = min(at + count, self.size)
        pieces = []
        while at < end:
            start, data = self._some(at // self._block, (end - 1) // self._block)
            pieces.append(memoryview(data)[at - start : end - start])
            at = start + len(data)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

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
                mine = None if self._has(index) else self._claim(index, last, ahead=True)
            if mine is not None:
                self._fetched(mine)
            index = index + 1 if mine is None else mine.stop

    def put(self, data: bytes) -> None:
        """Keep bytes that are known already, from the start on."""
        whole = len(data) if len(data) >= self.size else len(data) // self._block * self._block
        with self._lock:
            self._keep(0, data[:whole], self._kept)

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._kept.clear()
            self._unread.clear()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _some(self, index: int, last: int) -> tuple[int, bytes]:
        """A block, or several among which it is, and where they begin; ``last`` is the last block wanted after it."""
        while True:
            with self._lock:
                self._read(index, index)
                data = self._kept.get(index)
                if data is not None:
                    self._kept.move_to_end(index)
                    return index * self._block, data
                coming = self._coming.get(index)
                if coming is None:
                    mine = self._claim(index, last, ahead=False)
            if coming is None:
                return mine.first * self._block, self._fetched(mine)
            try:
                data = coming.done.result()
                with self._lock:
                    self._read(index, min(last, coming.stop - 1))
                return coming.first * self._block, data
            except InputError as error:
                raise InputError(str(error)) from error  # one of this thread's own
            except CancelledError:  # the thread that fetched it was interrupted
                continue

    def _read(self, index: int, last: int) -> None:
        """Say of blocks that they are read."""
        for one in range(index, last + 1):
            if (data := self._unread.pop(one, None)) is not None:
                self._kept[one] = data

    def _has(self, index: int) -> bool:
        return index in self._kept or index in self._unread or index in self._coming

    def _claim(self, index: int, last: int, *, ahead: bool) -> _Run:
        """Say that a block is fetched here, with those after it that are wanted as well."""
        end = last + 1
        if self._has(index - 1):
            end = max(end, index + self._ahead)
        end = min(end, index + self._longest, -(-self.size // self._block))
        stop = index + 1
        while stop < end and not self._has(stop):
            stop += 1
        run = _Run(index, stop, ahead)
        self._coming.update(dict.fromkeys(range(index, stop), run))
        return run

    def _fetched(self, run: _Run) -> bytes:
        try:
            data = self._fetch(run.first * self._block, min(run.stop * self._block, self.size))
        except BaseException as error:
            self._arrived(run)
            if isinstance(error, InputError):
                run.done.set_exception(error)
            else:
                run.done.cancel()
            raise
        self._arrived(run, data)
        run.done.set_result(data)
        return data

    def _arrived(self, run: _Run, data: bytes = b"") -> None:
        with self._lock:
            for index in range(run.first, run.stop):
                del self._coming[index]
            self._keep(run.first, data, self._unread if run.ahead else self._kept)

    def _keep(self, first: int, data: bytes, into: OrderedDict[int, bytes]) -> None:
        for number, start in enumerate(range(0, len(data), self._block)):
            into[first + number] = data[start : start + self._block]
        while len(self._kept) + len(self._unread) > self._room:
            (self._kept or self._unread).popitem(last=False)
