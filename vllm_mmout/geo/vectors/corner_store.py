"""Store the corners of unfinished polygons in memory, and in a temporary file once they exceed a budget."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError

_CHUNK = 2**15
"""Number of polygon corners that are moved to the temporary file at a time."""
_BYTES = 8
"""Size of a stored polygon corner in bytes (two int32 numbers)."""


class WaitingCorners:
    """Store for the corners, int32 [n, 2], of unfinished polygons. Reading a corner removes it from the store.

    Corners are stored in chunks. When all corners of a chunk have been taken, the chunk is dropped and its space in
    the file is reused. ``budget`` is in bytes, and ``folder`` is the folder of the temporary file.
    """

    def __init__(self, budget: int, folder: Path | None = None) -> None:
        self._most = max(1, budget // (_CHUNK * _BYTES))
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0
        self._unread: dict[int, int] = {}
        """Number of unread corners of each chunk, by chunk index. The number is `_CHUNK` when a chunk is created,
        although the chunk is still empty."""
        self._memory: dict[int, NDArray[np.int32]] = {}
        self._file_positions: dict[int, int] = {}
        """Position of each chunk in the temporary file, by chunk index. Positions are counted in chunks."""
        self._free: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop all stored polygon corners. Delete the temporary file if it exists."""
        self._memory.clear()
        if self._file is not None:
            self._file.close()

    def put(self, rows: NDArray[np.int32]) -> int:
        """Store polygon corners [n, 2] at consecutive addresses, and return the address of the first corner."""
        address, done = self._end, 0
        while done < len(rows):
            chunk, start = divmod(self._end, _CHUNK)
            if start == 0:
                self._make_room()
                self._memory[chunk] = np.empty((_CHUNK, 2), np.int32)
                self._unread[chunk] = _CHUNK
            part = rows[done : done + _CHUNK - start]
            self._memory[chunk][start : start + len(part)] = part
            done += len(part)
            self._end += len(part)
        return address

    def take(self, address: int, count: int) -> NDArray[np.int32]:
        """Remove ``count`` consecutive polygon corners from the store, and return them as int32 [count, 2].

        ``address`` is the position of the first corner, counted in corners from the first that was ever stored.
        """
        rows = np.empty((count, 2), np.int32)
        done = 0
        while done < count:
            chunk, start = divmod(address + done, _CHUNK)
            part = rows[done : done + _CHUNK - start]
            self._copy(chunk, start, part)
            done += len(part)
            self._unread[chunk] -= len(part)
            if not self._unread[chunk]:
                del self._unread[chunk]
                if self._memory.pop(chunk, None) is None:
                    self._free.append(self._file_positions.pop(chunk))
        return rows

    def _copy(self, chunk: int, start: int, part: NDArray[np.int32]) -> None:
        if chunk in self._memory:
            part[:] = self._memory[chunk][start : start + len(part)]
            return
        file = self._opened()
        file.seek((self._file_positions[chunk] * _CHUNK + start) * _BYTES)
        part[:] = np.frombuffer(file.read(part.nbytes), np.int32).reshape(-1, 2)

    def _make_room(self) -> None:
        """Move the oldest chunks of corners to the temporary file until memory has room for another chunk."""
        while len(self._memory) >= self._most:
            chunk = next(iter(self._memory))
            slot = self._free.pop() if self._free else len(self._file_positions)
            try:
                file = self._opened()
                file.seek(slot * _CHUNK * _BYTES)
                file.write(self._memory[chunk].tobytes())
            except OSError as error:
                where = f"{tempfile.gettempdir()}, or set TMPDIR" if self._folder is None else str(self._folder)
                raise SaveError(
                    f"polygons of a large raster need a temporary file: {error.strerror or error}; make room in {where}"
                ) from error
            self._file_positions[chunk] = slot
            del self._memory[chunk]

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as self
        return self._file


class BorderSegments:
    """Border segments of unfinished polygons, as linked lists. Each segment is a sequence of corners."""

    def __init__(self, waiting: WaitingCorners) -> None:
        self._waiting = waiting
        self._table = np.zeros((256, 3), np.int64)
        """Table with a row for each border segment. The columns are the index of the next segment (-1 if unknown), the
        position of the first corner in the store `WaitingCorners`, and the number of corners."""
        self._free = np.arange(256)[::-1].copy()
        self._unused = 256

    def put(self, vertices: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.intp]:
        """Store the corners of new border segments, and return an identifier for each segment.

        `join` and `take` accept the identifiers. ``vertices`` are the corners [n, 2] of all segments in turn.
        ``counts`` has the number of corners per segment.
        """
        while self._unused < len(counts):
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._free = np.concatenate([np.arange(2 * size - 1, size - 1, -1), self._free[: self._unused], self._free])
            self._unused += size
            self._free = self._free[: 2 * size]
        self._unused -= len(counts)
        numbers = self._free[self._unused : self._unused + len(counts)].copy()
        ends = np.cumsum(counts)
        address = self._waiting.put(vertices)
        self._table[numbers] = np.stack([np.full(len(counts), -1), address + ends - counts, counts], axis=1)
        return numbers

    def join(self, segments: NDArray[np.intp], following: NDArray[np.intp]) -> None:
        """Link border segments: record that ``following[i]`` is the next segment after ``segments[i]``."""
        self._table[segments, 0] = following

    def take(self, first: int) -> NDArray[np.int32]:
        """Remove the border that begins with segment ``first``, and return its corners, int32 [n, 2]."""
        parts, numbers = [], []
        while first >= 0:
            numbers.append(first)
            first, address, count = self._table[first].tolist()
            parts.append(self._waiting.take(address, count))
        self._free[self._unused : self._unused + len(numbers)] = numbers
        self._unused += len(numbers)
        return np.concatenate(parts)
