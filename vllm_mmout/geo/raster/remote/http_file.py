"""Read files on HTTP and HTTPS servers by byte range, or download them if the server supports no ranges.

fsspec is not used, since it reads HTTP on an event loop in a separate thread and does not retry.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.block_cache import BLOCK, Buffer
from vllm_mmout.geo.raster.remote.block_file import BlockFile, too_large
from vllm_mmout.geo.raster.remote.connections import Connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.fetcher import Fetcher
from vllm_mmout.retries import BrokenError

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_PIECE = 2**16
_CONTENT_RANGE = re.compile(r"bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Byte range that a response contains, and the version of the file that it belongs to."""

    start: int
    stop: int
    size: int | None
    """Size of the whole file in bytes, or None if the server does not know it."""
    etag: str | None
    modified: str | None

    @classmethod
    def of(cls, response: BaseHTTPResponse) -> Self | None:
        """Parse the Content-Range header of a response.

        Return None if the header is missing, malformed or has several ranges.
        """
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if match is None or int(match[2]) < int(match[1]):
            return None
        size = None if match[3] == "*" else int(match[3])
        if size is not None and size <= int(match[2]):
            return None
        tag = response.headers.get("ETag")
        modified = response.headers.get("Last-Modified")
        return cls(int(match[1]), int(match[2]) + 1, size, tag and tag.removeprefix("W/"), modified)

    def same_file(self, other: ContentRange) -> bool:
        """Return whether this response and ``other`` may be parts of the same version of a file.

        Size, ETag and Last-Modified are compared if both responses state them. ``If-Range`` is not sent instead, since
        responses to it may leave out these headers.
        """
        pairs = [(self.size, other.size), (self.etag, other.etag), (self.modified, other.modified)]
        return all(a == b for a, b in pairs if a is not None and b is not None)


class HttpFile(BlockFile):
    """A file on a server that supports range requests, open for reading.

    The file must not change while it is open: a response with another version raises InputError.
    """

    def __init__(self, fetcher: Fetcher, first: ContentRange, head: bytes) -> None:
        super().__init__(fetcher.name, first.size or 0, fetcher.options.limit, head)
        self._fetcher = fetcher
        self._first = first

    def close(self) -> None:
        """Close the file and its connections. May be called more than once."""
        self._fetcher.close()
        super().close()

    def _fetch(self, start: int, stop: int) -> Buffer:
        data = bytearray()
        self._fetcher.retry(f"bytes {start} to {stop}", partial(self._fetch_rest, data, start, stop), data.__len__)
        return memoryview(data).toreadonly()

    def _fetch_rest(self, data: bytearray, start: int, stop: int) -> None:
        """Fetch bytes and append them to ``data``, until ``data`` holds the file's bytes from ``start`` to ``stop``.

        Each response must contain at least a block, unless the rest is smaller.
        """
        while (at := start + len(data)) < stop:
            with self._fetcher.open_response((at, stop)) as response:
                part = self._expected(response, at, stop)
                append_body(data, response, part, self.name)
            if part.stop < min(stop, at + BLOCK):
                raise BrokenError(f"the server gave {part.stop - at} bytes of {stop - at}")

    def _expected(self, response: BaseHTTPResponse, at: int, stop: int) -> ContentRange:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            raise InputError(
                f"{self.name} was changed while it was read, or its server ignores range requests now: asked for"
                f" bytes {at} to {stop} of {self.size}, the server answered {response.status}; send it again"
            )
        part = ContentRange.of(response)
        if part is not None and not part.same_file(self._first):
            raise InputError(f"{self.name} was changed on its server while it was read; send it again")
        if part is None or part.start != at or part.stop > stop:
            content_range = response.headers.get("Content-Range", "nothing")[:60]
            raise InputError(
                f"{self.name}: asked for bytes {at} to {stop}, the server says it gave {content_range!r}; download the"
                " file and give its path"
            )
        return part


def append_body(data: bytearray, response: BaseHTTPResponse, content_range: ContentRange, name: str) -> None:
    """Append the body of a response to ``data``. If the connection breaks, keep the bytes that were received before."""
    missing = content_range.stop - content_range.start
    length = response.headers.get("Content-Length", str(missing)).strip()
    if length != str(missing):
        raise _contradiction(name, content_range, f"{length[:30]} bytes")
    while missing and (piece := response.read(min(missing, _PIECE))):
        data += piece
        missing -= len(piece)
    if missing:
        raise BrokenError(f"the connection ended {missing} bytes before its answer did")
    if response.chunked and response.read(1):  # consumes the last chunk marker, so that the connection can be reused
        raise _contradiction(name, content_range, "more")


def _contradiction(name: str, part: ContentRange, received: str) -> InputError:
    return InputError(
        f"{name}: the server announced bytes {part.start} to {part.stop}, but sent {received}; download the file"
        " and give its path"
    )


def open_remote(
    address: str, options: FetchOptions | None = None, connections: Callable[[FetchOptions], Connections] = Connections
) -> BinaryIO:
    """Open a file on an HTTP or HTTPS server for reading. The address may contain user and password.

    ``options`` are read from the environment if None. If the server supports range requests, only the blocks that are
    read are fetched, and the returned file has the thread-safe method ``read_at(at, count)``. Otherwise the whole file
    is downloaded into an unnamed temporary file, which is deleted when it is closed.
    Raises InputError if the file does not exist or exceeds the size limit, or if the server refuses or fails.
    """
    options = FetchOptions.from_environment() if options is None else options
    fetcher = Fetcher(address, options, connections(options))
    try:
        opened = fetcher.retry("its beginning", partial(_begin, fetcher))
        file = opened or fetcher.retry("the file", partial(_whole, fetcher))
    except BaseException:
        fetcher.close()
        raise
    if not isinstance(file, HttpFile):
        fetcher.close()
    return cast("BinaryIO", file)


def _begin(fetcher: Fetcher) -> HttpFile | BinaryIO | None:
    """Open a remote file by requesting its first bytes. Return None if the response lacks a byte range or file size.

    If the server sends the whole file instead, the file is downloaded.
    """
    with fetcher.open_response((0, BLOCK)) as response:
        if response.status == HTTPStatus.OK:
            return _downloaded(fetcher, response)
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise InputError(f"{fetcher.name} is empty, or its server refuses to send its first byte (416)")
        part = ContentRange.of(response)
        if part is None or part.start != 0 or part.size is None or part.stop > BLOCK:
            return None
        head = bytearray()
        append_body(head, response, part, fetcher.name)
        return HttpFile(fetcher, part, bytes(head))


def _whole(fetcher: Fetcher) -> BinaryIO:
    with fetcher.open_response(None) as response:
        if response.status != HTTPStatus.OK:
            raise InputError(
                f"{fetcher.name}: the server answers {response.status} to a request for the whole file; download it and"
                " give its path"
            )
        return _downloaded(fetcher, response)


def _downloaded(fetcher: Fetcher, response: BaseHTTPResponse) -> BinaryIO:
    limit = fetcher.options.limit
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and len(length) < 19 and int(length) > limit:
        raise too_large(fetcher.name, f"it has {length} bytes, and its server ignores range requests", limit)
    file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - it is the caller's
    try:
        for piece in _pieces(fetcher, response, limit):
            file.write(piece)
        file.seek(0)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            where = tempfile.gettempdir()
            raise InputError(f"{fetcher.name} cannot be stored in {where}: {error.strerror}") from error
        raise
    return file


def _pieces(fetcher: Fetcher, response: BaseHTTPResponse, limit: int) -> Iterator[bytes]:
    size = 0
    while piece := response.read(_PIECE):
        size += len(piece)
        if size > limit:
            fact = f"{size} bytes were received without an end, and its server ignores range requests"
            raise too_large(fetcher.name, fact, limit)
        yield piece
