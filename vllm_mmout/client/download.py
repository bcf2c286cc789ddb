"""Downloading a result: by ranges from where it stopped, now or in a later process (RFC 9110, 13.1.5 and 14)."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode

from vllm_mmout.client.errors import BrokenError, ServerError
from vllm_mmout.client.job import Output
from vllm_mmout.client.jobs import ROUTE
from vllm_mmout.client.part_file import PartFile
from vllm_mmout.client.session import Session

_PIECE = 256 << 10
_NO_SUCH_PART = frozenset({int(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)})


def result_path(job: str, output: Output) -> str:
    """Where a result lies below the server's address."""
    return f"{ROUTE}/{job}/content?{urlencode({'processor': output.processor})}"


def download(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Download what is not there yet; what broke off goes on where it stopped.

    Args:
        session: with the server.
        path: below the server's address.
        size: bytes of the whole.
        part: where to; whole afterwards.
        show: is told how many bytes are there.

    Raises:
        SaveError: the bytes cannot be written.
        ServerError: the server refuses, breaks off too often, or sends something else.

    """
    patience = session.patience()
    most = 0
    while True:
        try:
            _go_on(session, path, size, part, show)
        except BrokenError as error:
            if part.size > most:  # a server without ranges could else be asked for ever
                most = part.size
                patience.went_on()
            patience.wait(error)
        else:
            break
    if part.size != size:
        part.begin(None)
        raise ServerError(f"the server sent another result than the {size} bytes that it spoke of; try again")
    part.finish()


def _go_on(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Ask once for what is missing, and write what comes."""
    # A whole file asks for its last byte again: whether it is still that of the server is then answered by the server.
    start = 0 if part.etag is None else min(part.size, max(size - 1, 0))
    headers = {"Range": f"bytes={start}-", "If-Range": part.etag} if start and part.etag else {}
    with session.answer("GET", path, headers=headers, takes=_NO_SUCH_PART) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.begin(None)
            raise BrokenError("the server has no such part of the result, which is fetched anew")
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                part.begin(None)
                raise BrokenError("the server sent another part of the result than it was asked for")
            part.cut(start)
        else:
            part.begin(response.headers.get("ETag"))
        show(part.size)
        for piece in response.stream(_PIECE):
            part.write(piece)
            show(part.size)
