"""BlockFile: a file that is far away, of which blocks are fetched when they are read."""

from __future__ import annotations

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import ManyReadersFile
from vllm_mmout.geo.raster.remote.block_cache import BlockCache, Buffer
from vllm_mmout.geo.raster.remote.fetch_options import LIMIT


class BlockFile(ManyReadersFile):
    """A file of which parts are fetched when they are read; also a file object, for one thread."""

    def __init__(self, name: str, size: int, limit: int, head: bytes) -> None:
        self.name = name
        self.size = size
        """Bytes of the whole file."""
        self._limit = limit
        self._blocks = BlockCache(self._fetch, size)
        self._blocks.put(head)
        self._at = 0

    def _fetch(self, start: int, stop: int) -> Buffer:
        """The bytes from a place to another."""
        raise NotImplementedError

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def read_at(self, at: int, count: int) -> bytes:
        """Read bytes at a place, fewer where the file ends; any number of threads may at once."""
        return bytes(self.view_at(at, count))

    def view_at(self, at: int, count: int) -> memoryview:
        """The same, without a copy where one request has fetched them all."""
        if self.closed:
            raise ValueError("read of closed file")
        count = min(count, self.size - at)
        if count > self._limit:
            raise too_large(self.name, f"{count} bytes of it are needed at once", self._limit)
        return self._blocks.view_at(at, count)

    def fetch(self, at: int, count: int) -> None:
        """Have bytes fetched that will be read soon; returns at once."""
        count = min(count, self.size - at)
        if not self.closed and 0 < count <= self._limit:
            self._blocks.fetch(at, count)

    def read(self, count: int | None = -1, /) -> bytes:
        """Read on from where the file is; to its end without a number."""
        data = self.read_at(self._at, self.size if count is None or count < 0 else count)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a place."""
        at = offset + (0, self._at, self.size)[whence]
        if at < 0:
            raise ValueError(f"there is no place {at}")
        self._at = at
        return at

    def tell(self) -> int:
        """Where the file is."""
        return self._at

    def close(self) -> None:
        """Let the file go; any number of times."""
        super().close()
        self._blocks.clear()


def too_large(name: str, fact: str, limit: int) -> InputError:
    """The error of what is larger than may be fetched at once."""
    return InputError(
        f"{name} is too large to be fetched at once: {fact}, at most {limit} are taken; raise {LIMIT}, or make it a"
        " tiled GeoTIFF on a server that gives parts of files"
    )
