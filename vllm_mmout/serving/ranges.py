"""Requests for part of a result (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.responses import bare_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from vllm_mmout.serving.encoded import Encoded

_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*", re.ASCII | re.IGNORECASE)


def ranged_response(
    request: Request, entry: Encoded, etag: str, headers: Mapping[str, str], name: str = "result"
) -> Response:
    """The answer to who asks for a result, or for a stretch of it; the result is closed when it has been sent.

    Args:
        request: the client's, with or without ``Range`` and ``If-Range``; only those of ``GET`` mean anything.
        entry: the result.
        etag: of just these bytes, without quotes.
        headers: further headers.
        name: of the client's file, see `bare_response`.

    Raises:
        ApiError: the stretch lies behind the end (416).

    """
    headers = {"Accept-Ranges": "bytes", "ETag": f'"{etag}"', **headers}
    part = None
    condition = request.headers.get("if-range")
    if request.method == "GET" and (condition is None or condition.strip() == f'"{etag}"'):
        part = asked_part(request.headers.get("range"), entry.nbytes)
    if part is not None and part.start >= part.stop:
        nbytes = entry.nbytes
        entry.close()
        raise ApiError(
            416, f"the result has {nbytes} bytes; ask for some of these", headers={"Content-Range": f"bytes */{nbytes}"}
        )
    return bare_response(entry, headers, name=name, part=part)


def asked_part(header: str | None, nbytes: int) -> slice | None:
    """The stretch that a header ``Range`` asks for.

    Args:
        header: its value; None: there is none.
        nbytes: bytes of the whole.

    Returns:
        First byte, and the one after the last; empty where nothing of it is there. None: the whole is to be sent, as
        for several stretches, other units, and what is malformed.

    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return slice(max(0, nbytes - int(last)), nbytes)
    if last and int(last) < int(first):
        return None
    return slice(int(first), min(int(last) + 1, nbytes) if last else nbytes)
