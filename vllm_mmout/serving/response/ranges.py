"""Answer HTTP requests for a byte range of a result (RFC 9110, section 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.responses import ClosingResponse, bare_response
from vllm_mmout.serving.response.result_files import Encoded

_RANGE = re.compile(r"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*", re.ASCII | re.IGNORECASE)
"""Pattern of a ``Range`` header with a single byte range."""


def ranged_response(
    request: Request, entry: Encoded, etag: str, headers: Mapping[str, str], name: str = "result"
) -> ClosingResponse:
    """Return a response with the file ``entry``, or with only the byte range that the client requests.

    The response closes the file when it has been sent. ``name`` is the client's file name without the suffix.
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
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{entry.nbytes}"
        entry.narrow(part)
    return bare_response(entry, headers, name=name, status=200 if part is None else 206)


def asked_part(header: str | None, nbytes: int) -> slice | None:
    """Return the byte range that a ``Range`` header requests, as a slice. Return None to send the whole file.

    ``nbytes`` is the size of the file. The slice is empty if the range is beyond the end of the file. The whole file is
    sent if the header is missing or malformed, has several ranges, or has a unit other than bytes.
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
