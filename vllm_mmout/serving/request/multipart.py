"""Forms as ``multipart/form-data``: python-multipart finds the parts, what they hold goes to memory and to files.

Not starlette's form, which takes one that ends in the middle for whole, and closes large files on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.sources import Form, Spool

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILES = 100
MAX_FIELDS = 1000
MAX_TEXT = 64 << 20
"""Bytes of all text fields of a form; a data URL is text."""
_MAX_NAME = 200


async def read_multipart(pieces: AsyncIterator[bytes], boundary: bytes) -> Form:
    """Read a form."""
    parts = _Parts()
    try:
        await parts.read(pieces, boundary)
        return await run_in_threadpool(parts.form)
    except BaseException:
        # A large file takes its disk a while to let go of; the thread does it also where this task is cancelled again.
        await run_in_threadpool(parts.close)
        raise


class _Parts:
    """What the parser found so far."""

    def __init__(self) -> None:
        self._ended = False
        self._fields: list[tuple[str, str]] = []
        self._files: list[tuple[str, Spool]] = []
        self._text_size = 0
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._name = ""
        self._text: bytearray | None = None
        self._unwritten: list[tuple[Spool, bytes]] = []

    async def read(self, pieces: AsyncIterator[bytes], boundary: bytes) -> None:
        """Find all parts."""
        try:
            parser = MultipartParser(boundary, self._callbacks())
            async for piece in pieces:
                parser.write(piece)
                await self._flush()
        except FormParserError as error:
            raise ApiError(400, f"the form is malformed: {error}; send it as multipart/form-data") from None
        if not self._ended:
            raise ApiError(400, "the form is incomplete: the boundary that ends it is missing; send it again")

    def form(self) -> Form:
        """The form that was read."""
        fields: dict[str, list[str]] = {}
        for name, text in self._fields:
            fields.setdefault(name, []).append(text)
        form = Form(fields, {})
        for name, spool in self._files:
            form.files.setdefault(name, []).append(spool.upload())
        return form

    def close(self) -> None:
        """Close all files."""
        for _, spool in self._files:
            spool.close()

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_part_end": self._part_ends,
            "on_end": self._ends,
        }

    async def _flush(self) -> None:
        """Write what came for files, in a thread where that waits for a disk."""
        unwritten, self._unwritten = self._unwritten, []
        waiting: list[tuple[Spool, bytes]] = []
        for spool, piece in unwritten:
            if not waiting and spool.takes(len(piece)):
                spool.write(piece)
            else:
                waiting.append((spool, piece))
        if waiting:
            await run_in_threadpool(_write, waiting)

    def _begin(self) -> None:
        self._header = (bytearray(), bytearray())
        self._disposition = b""

    def _header_ends(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"")
        if kind != b"form-data" or not name:
            raise ApiError(400, 'a part of the form has no name; send "Content-Disposition: form-data; name=..."')
        self._name = _text(name[: _MAX_NAME + 1], "the name of a field")
        if len(name) > _MAX_NAME:
            raise ApiError(400, f"the name of a field is longer than {_MAX_NAME} bytes; shorten it")
        if b"filename" in options:
            self._text = None
            self._files.append((self._name, Spool(options[b"filename"].decode(errors="replace"))))
            if len(self._files) > MAX_FILES:
                raise ApiError(413, f"the form has more than {MAX_FILES} files, the most that are taken; send fewer")
        else:
            self._text = bytearray()
            if len(self._fields) == MAX_FIELDS:
                raise ApiError(413, f"the form has more than {MAX_FIELDS} fields, the most that are taken; send fewer")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self._unwritten.append((self._files[-1][1], data[start:end]))
            return
        self._text_size += end - start
        if self._text_size > MAX_TEXT:
            raise too_much_text(self._name)
        self._text += data[start:end]

    def _part_ends(self) -> None:
        if self._text is not None:
            self._fields.append((self._name, _text(self._text, f"the field {self._name!r}", self._name)))
            self._text = None

    def _ends(self) -> None:
        self._ended = True


def too_much_text(name: str | None) -> ApiError:
    """The error of a form whose text is too long."""
    return ApiError(
        413, f"the text of the request is longer than {MAX_TEXT >> 20} MiB; send data as a file", param=name
    )


def _write(pieces: list[tuple[Spool, bytes]]) -> None:
    for spool, piece in pieces:
        spool.write(piece)


def _text(data: bytes | bytearray, what: str, name: str | None = None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"{what} is not UTF-8 text; send data as a file", param=name) from None
