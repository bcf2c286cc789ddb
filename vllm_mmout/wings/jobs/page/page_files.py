"""Serve the static files of the web page."""

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
    from argparse import Namespace

    from fastapi import FastAPI

_INDEX: Final = "index.html"
_FORMATS: Final = b"<!-- formats -->"
"""Placeholder in index.html. The server replaces it by the HTML list of result formats."""
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_EVERY_HOST: Final = (None, "", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
"""Values of ``--host`` that mean all network interfaces. The web page's URL then contains ``localhost`` instead."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def attach(app: FastAPI) -> None:
    """Register the web page's routes ``/mmout`` and ``/mmout/{name}`` on the app."""
    files = _files()

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", _INDEX)
        if name not in files:
            return error_response(ApiError(404, f"the page has no file {name!r}; it starts at /mmout", param="name"))
        content, headers = files[name]
        client_etags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if headers["ETag"] in client_etags:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    for path, name in (("/mmout", "mmout_page"), ("/mmout/{name}", "mmout_page_file")):
        app.add_api_route(path, page_file, methods=["GET", "HEAD"], include_in_schema=False, name=name)


def address(args: Namespace) -> str | None:
    """Return the web page's URL, given the server's arguments. Return None if the server listens on a Unix socket."""
    if args.uds:
        return None
    host = args.host if args.host not in _EVERY_HOST else "localhost"
    scheme = "https" if args.ssl_keyfile and args.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{args.port}/mmout"


def _files() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Read the page's static files, and return the content and response headers of each file by name."""
    folder = resources.files(__package__) / "static"
    return {
        entry.name: _file(entry.read_bytes().replace(_FORMATS, _formats()), _MEDIA_TYPES[suffix])
        for entry in folder.iterdir()
        if (suffix := PurePath(entry.name).suffix) in _MEDIA_TYPES
    }


def _formats() -> bytes:
    """Return the HTML ``<option>`` elements of the page's format field, one for each result format."""
    return "".join(
        f'<option value="{name}" data-title="{form.title}" data-ending="{form.suffixes[0][1:]}">{form.title}</option>'
        for name, form in SENT.items()
    ).encode()


def _file(content: bytes, media_type: str) -> tuple[bytes, dict[str, str]]:
    return content, {
        "Content-Type": media_type,
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # Another release serves other files under the same names, so browsers must revalidate at every use.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
