"""The routes of the page: its static files, and nothing else."""

from __future__ import annotations

import hashlib
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


def attach(app: FastAPI) -> None:
    """Register ``/mmout`` and the files below it."""
    files = _files()

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", _INDEX)
        if name not in files:
            return error_response(ApiError(404, f"the page has no file {name!r}; it starts at /mmout", param="name"))
        content, headers = files[name]
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if headers["ETag"] in known:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    for path, name in (("/mmout", "mmout_page"), ("/mmout/{name}", "mmout_page_file")):
        app.add_api_route(path, page_file, methods=["GET", "HEAD"], include_in_schema=False, name=name)


def _files() -> dict[str, tuple[bytes, dict[str, str]]]:
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


def _file(content: bytes, media_type: str) -> tuple[bytes, dict[str, str]]:
    """A file of the page with its headers, as it is sent."""
    return content, {
        "Content-Type": media_type,
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # Another version of the package has other files under the same names: each use asks whether it is this one.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
