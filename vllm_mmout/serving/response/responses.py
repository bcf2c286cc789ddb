"""Answers that are sent piece by piece: what is large is read and encoded in a thread, and let go at the end."""

from __future__ import annotations

import json
import re
import time
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.disconnects import send_in_time
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, SOUND_TYPES, Encoded

if TYPE_CHECKING:
    from typing import TypeAlias

    from starlette.types import Receive, Scope, Send

    Part: TypeAlias = "bytes | Encoded | Section"

_READ = 3 << 17
"""Bytes that are read and encoded at once: of whole groups of base64, and little enough to hold nothing else up."""
_SAFE = frozenset({*MEDIA_TYPES.values(), *SOUND_TYPES.values()})
"""What a browser may show by itself: no code of an author's ``to_response`` runs under the server's name."""
_RANGE = re.compile(r"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*", re.ASCII | re.IGNORECASE)
"""One stretch (RFC 9110, section 14)."""


class Section:
    """A stretch of a result's bytes, for an answer of just these."""

    def __init__(self, whole: Encoded, start: int, nbytes: int) -> None:
        self._whole = whole
        self._start = start
        self.nbytes = nbytes

    def read(self, at: int, count: int) -> bytes:
        """As `Encoded.read`."""
        return self._whole.read(self._start + at, min(count, self.nbytes - at))

    def close(self) -> None:
        """As `Encoded.close`."""
        self._whole.close()


class PiecesResponse(StreamingResponse):
    """An answer of known length whose parts are sent piece by piece, and closed in the end, however that comes."""

    def __init__(
        self,
        parts: Sequence[Part],
        media_type: str,
        *,
        as_text: bool,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> None:
        self._parts = parts
        length = sum(_length(part, as_text=as_text) for part in parts)
        super().__init__(
            iterate_in_threadpool(pieces(parts, as_text=as_text)),
            status,
            headers={"Content-Length": str(length), **(headers or {})},
            media_type=media_type,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or its headers alone where they are asked for."""
        try:
            await send_in_time(
                self._headers_alone if scope.get("method") == "HEAD" else super().__call__, scope, receive, send
            )
        finally:
            await close_all(self._parts)

    async def _headers_alone(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b""})


def json_response(
    entries: Sequence[Encoded],
    *,
    tiles: int = 0,
    used: Mapping[str, Any] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    processors: Sequence[str] = (),
    urls: Sequence[str] = (),
) -> PiecesResponse:
    """The answer of OpenAI's image routes, `openai.types.ImagesResponse`.

    What the answer says of its results is said of the first one; where processors were asked for by name, each place
    says it of its own.
    """
    first = entries[0]
    head = {"created": int(time.time()), **_described(first), "usage": usage(tiles) if used is None else used}
    parts: list[Part] = [_open(head) + b',"data":[']
    for place, entry in enumerate(entries):
        own: dict[str, Any] = {"processor": processors[place], **_described(entry)} if processors else {}
        own |= notes[place] if notes else {}
        if place:
            parts.append(b",")
        if urls:
            parts += [_json({**own, "url": urls[place]})]
        else:
            parts += [_open(own) + (b"," if own else b"") + b'"b64_json":"', entry, b'"}']
    return PiecesResponse([*parts, b"]}"], MEDIA_TYPES["json"], as_text=True)


def bare_response(
    entry: Encoded, headers: Mapping[str, str] | None = None, *, name: str = "result", part: slice | None = None
) -> PiecesResponse:
    """The bytes of one result; it is closed when they have been sent."""
    shown = "inline" if entry.media_type in _SAFE else "attachment"
    sent: Part = entry
    ranged = {}
    if part is not None:
        sent = Section(entry, part.start, part.stop - part.start)
        ranged = {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{entry.nbytes}"}
    return PiecesResponse(
        [sent],
        entry.media_type,
        as_text=False,
        headers={
            "Content-Disposition": f'{shown}; filename="{name}{entry.suffix}"',
            "X-Content-Type-Options": "nosniff",
            **ranged,
            **(headers or {}),
        },
        status=200 if part is None else 206,
    )


def usage(tiles: int) -> dict[str, Any]:
    """What a request took, as OpenAI counts it: a forward of the model is a token of its input."""
    return {
        "input_tokens": tiles,
        "input_tokens_details": {"image_tokens": tiles, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": tiles,
    }


def pieces(parts: Iterable[Part], *, as_text: bool) -> Iterator[bytes]:
    """The bytes of all parts, some hundred KiB at a time; blocks.

    As one text of base64 a result would be in memory three times.
    """
    waiting = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            waiting += part
            continue
        for at in range(0, part.nbytes, _READ):
            read = part.read(at, _READ)
            waiting += b2a_base64(read, newline=False) if as_text else read
            if len(waiting) >= _READ:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)


async def close_all(parts: Iterable[Part]) -> None:
    """Let results go, in a thread, also where the task has been cancelled."""
    with anyio.CancelScope(shield=True):
        await run_sync(close_entries, [part for part in parts if not isinstance(part, bytes)])


def close_entries(entries: Iterable[Encoded | Section]) -> None:
    """Let results go; blocks as long as a disk takes."""
    for entry in entries:
        entry.close()


def _length(part: Part, *, as_text: bool) -> int:
    if isinstance(part, bytes):
        return len(part)
    return (part.nbytes + 2) // 3 * 4 if as_text else part.nbytes


def _described(entry: Encoded) -> dict[str, str]:
    """What OpenAI says of a picture, as far as the result has it."""
    own = None if entry.format in MEDIA_TYPES else entry.media_type  # of bytes that no name of a format tells
    known = {
        "background": entry.background,
        "output_format": entry.format,
        "size": entry.size,
        "media_type": own,
    }
    return {name: value for name, value in known.items() if value is not None}


def _open(fields: Mapping[str, Any]) -> bytes:
    """A JSON object without its end, to which further fields are written."""
    return _json(fields)[:-1]


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def ranged_response(
    request: Request, entry: Encoded, etag: str, headers: Mapping[str, str], name: str = "result"
) -> PiecesResponse:
    """The answer to who asks for a result, or for a stretch of it; the result is closed when it has been sent."""
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
    """The stretch that a header ``Range`` asks for."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return slice(max(0, nbytes - int(last)), nbytes)
    if last and int(last) < int(first):
        return None
    return slice(int(first), min(int(last) + 1, nbytes) if last else nbytes)
