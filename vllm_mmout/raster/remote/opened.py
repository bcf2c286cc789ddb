"""Files on servers of http and https, opened to be read: by parts where the server gives them, else fetched whole."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, cast

from vllm_mmout.errors import InputError
from vllm_mmout.raster.remote.block_cache import BLOCK
from vllm_mmout.raster.remote.connections import Connections
from vllm_mmout.raster.remote.fetch_options import FetchOptions
from vllm_mmout.raster.remote.fetcher import Fetcher
from vllm_mmout.raster.remote.http_file import HttpFile, Part, read_into, too_large

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_PIECE = 2**16


def open_remote(
    address: str,
    options: FetchOptions | None = None,
    connections: Callable[[FetchOptions], Connections] = Connections,
) -> BinaryIO:
    """Open a file on a server.

    Where the server gives parts of it, those that are read are fetched; the file has ``read_at(at, count)`` for several
    threads at once then. Else it is fetched whole into a file without a name, which is gone when it is closed.

    Args:
        address: http://... or https://..., with user and password where the server wants them.
        options: how to fetch it; None: as the environment says, see `FetchOptions`.
        connections: makes what requests go through.

    Raises:
        InputError: there is no such file, the server refuses or fails, or the file is larger than may be fetched.
        OptionError: a variable of the environment has a value that it cannot have.

    """
    options = FetchOptions.from_environment() if options is None else options
    fetcher = Fetcher(address, options, connections(options))
    try:
        begun = fetcher.insist("its beginning", partial(_begin, fetcher))
        file = begun or fetcher.insist("the file", partial(_whole, fetcher))
    except BaseException:
        fetcher.close()
        raise
    if not isinstance(file, HttpFile):
        fetcher.close()
    return cast("BinaryIO", file)


def _begin(fetcher: Fetcher) -> HttpFile | BinaryIO | None:
    """Ask for the first block; None where the server gives other parts, or not the size of the whole."""
    with fetcher.answer((0, BLOCK)) as response:
        if response.status == HTTPStatus.OK:
            return _downloaded(fetcher, response)
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise InputError(f"{fetcher.name} is empty, or its server gives no first byte of it (416)")
        part = Part.of(response)
        if part is None or part.start != 0 or part.size is None or part.stop > BLOCK:
            return None
        head = bytearray()
        read_into(head, response, part, fetcher.name)
        return HttpFile(fetcher, part, bytes(head))


def _whole(fetcher: Fetcher) -> BinaryIO:
    with fetcher.answer(None) as response:
        if response.status != HTTPStatus.OK:
            raise InputError(
                f"{fetcher.name}: the server answers {response.status} to a request for the whole file; download it and"
                " give its path"
            )
        return _downloaded(fetcher, response)


def _downloaded(fetcher: Fetcher, response: BaseHTTPResponse) -> BinaryIO:
    """The body of an answer as a file without a name."""
    limit = fetcher.options.limit
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and len(length) < 19 and int(length) > limit:
        raise too_large(fetcher.name, f"it has {length} bytes, and its server gives no parts of it", limit)
    file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - it is the caller's
    try:
        _copy(fetcher, response, file)
    except OSError as error:
        file.close()
        raise InputError(f"{fetcher.name} cannot be stored in {tempfile.gettempdir()}: {error.strerror}") from error
    except BaseException:
        file.close()
        raise
    return file


def _copy(fetcher: Fetcher, response: BaseHTTPResponse, file: BinaryIO) -> None:
    limit = fetcher.options.limit
    size = 0
    while piece := response.read(_PIECE):
        size += len(piece)
        if size > limit:
            fact = f"{size} bytes have come without an end, and its server gives no parts of it"
            raise too_large(fetcher.name, fact, limit)
        file.write(piece)
    file.seek(0)
