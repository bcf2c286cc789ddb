"""Class `BlockFile`: base class of remote files that are fetched block by block as they are read."""

from __future__ import annotations

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import ManyReadersFile
from vllm_mmout.geo.raster.remote.block_cache import BlockCache, Buffer
from vllm_mmout.geo.raster.remote.fetch_options import LIMIT


class BlockFile(ManyReadersFile):
    """Base class of remote files that are fetched block by block as they are read.

    Any number of threads may call `read_at`, `view_at` and `fetch`. The methods of file objects (`read`, `seek`,
    `tell`) are for a single thread.
    """

    def __init__(self, name: str, size: int, limit: int, head: bytes) -> None:
        self.name = name
        self.size = size
        """Size of the whole file in bytes."""
        self._limit = limit
        self._blocks = BlockCache(self._fetch, size)
        self._blocks.put(head)
        self._at = 0

    def _fetch(self, start: int, stop: int) -> Buffer:
        """Fetch the bytes of the file from ``start`` to ``stop``."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def read_at(self, at: int, count: int) -> bytes:
        """Return ``count`` bytes from offset ``at``, or fewer at the end of the file. Thread-safe."""
        return bytes(self.view_at(at, count))

    def view_at(self, at: int, count: int) -> memoryview:
        """Return a view of ``count`` bytes from offset ``at``, or fewer at the end of the file. Thread-safe.

        The bytes are not copied if a single request has fetched all of them.
        """
        if self.closed:
            raise ValueError("read of closed file")
        count = min(count, self.size - at)
        if count > self._limit:
            raise too_large(self.name, f"{count} bytes are needed at once", self._limit)
        return self._blocks.view_at(at, count)

    def fetch(self, at: int, count: int) -> None:
        """Start fetching ``count`` bytes from offset ``at`` in the background, and return at once."""
        count = min(count, self.size - at)
        if not self.closed and 0 < count <= self._limit:
            self._blocks.fetch(at, count)

    def read(self, count: int | None = -1, /) -> bytes:
        """Read ``count`` bytes from the current position, or the rest of the file if ``count`` is negative or None."""
        data = self.read_at(self._at, self.size if count is None or count < 0 else count)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move the current position like ``io.IOBase.seek``, and return it as an offset from the start of the file."""
        at = offset + (0, self._at, self.size)[whence]
        if at < 0:
            raise ValueError(f"cannot seek to the negative offset {at}")
        self._at = at
        return at

    def tell(self) -> int:
        """Return the current position as an offset from the start of the file."""
        return self._at

    def close(self) -> None:
        """Close the file and free its cached blocks. May be called more than once."""
        super().close()
        self._blocks.clear()


def too_large(name: str, fact: str, limit: int) -> InputError:
    """Return the error for a file, or a part of it, that is too large to fetch at once. ``fact`` states its size."""
    return InputError(
        f"{name} is too large to be fetched at once: {fact}, the limit is {limit}; raise {LIMIT}, or make it a"
        " tiled GeoTIFF on a server that supports range requests"
    )
