"""The routes of the page: its static files, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.outputs.formats import SENT
from vllm_mmout.serving.errors import ApiError, error_response

if TYPE_CHECKING:
    from fastapi import FastAPI

_INDEX: Final = "index.html"
_FORMATS: Final = b"<!-- formats -->"
"""Where the page lists the formats of results."""
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page, as it is sent."""

    content: bytes
    headers: dict[str, str]


def attach(app: FastAPI) -> None:
    """Register ``/mmout`` and the files below it."""
    files = _files()

    async def page(request: Request) -> Response:
        return _sent(request, files[_INDEX])

    async def page_file(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            missing = ApiError(404, f"the page has no file {name!r}; it starts at /mmout", param="name")
            return error_response(missing)
        return _sent(request, file)

    methods = ["GET", "HEAD"]
    app.add_api_route("/mmout", page, methods=methods, include_in_schema=False, name="mmout_page")
    app.add_api_route("/mmout/{name}", page_file, methods=methods, include_in_schema=False, name="mmout_page_file")


def _files() -> dict[str, _File]:
    """What may be asked for, by name, read once: a request never opens a file."""
    folder = resources.files(__package__) / "static"
    return {
        entry.name: _file(entry.read_bytes().replace(_FORMATS, _formats()), _MEDIA_TYPES[suffix])
        for entry in folder.iterdir()
        if (suffix := PurePath(entry.name).suffix) in _MEDIA_TYPES
    }


def _formats() -> bytes:
    """The options of the field, with what the page says of a result of each."""
    return "".join(
        f'<option value="{name}" data-title="{form.title}" data-ending="{form.suffixes[0][1:]}">{form.title}</option>'
        for name, form in SENT.items()
    ).encode()


def _file(content: bytes, media_type: str) -> _File:
    headers = {
        "Content-Type": media_type,
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # Another version of the package has other files under the same names: each use asks whether it is this one.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    return _File(content, headers)


def _sent(request: Request, file: _File) -> Response:
    known = request.headers.get("if-none-match", "")
    if file.headers["ETag"] in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
