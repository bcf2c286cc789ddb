"""Request ids for logs, traces and responses, and the trace headers of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from vllm.tracing import extract_trace_headers

if TYPE_CHECKING:
    from starlette.requests import Request


def request_id(request: Request, kind: str = "request") -> str:
    """Return the request's id for logs, traces and the response. The first call creates it.

    It holds the kind, the client's ``X-Request-Id`` if there is one, and a random part.
    """
    name: str | None = getattr(request.state, "mmout_request_id", None)
    if name is None:
        given = "".join(sign for sign in request.headers.get("x-request-id", "")[:64] if sign.isalnum() or sign in "-_")
        name = request.state.mmout_request_id = "-".join(part for part in (kind, given, uuid4().hex) if part)
    return name


def id_header(request: Request) -> dict[str, str]:
    """Return the response header with the request's id, which OpenAI's client shows as ``_request_id``.

    It is empty where vLLM adds a header of that name itself (``--enable-request-id-headers``).
    """
    args = getattr(request.app.state, "args", None)
    return {} if getattr(args, "enable_request_id_headers", False) else {"X-Request-Id": request_id(request)}


def trace_headers(request: Request) -> Mapping[str, str]:
    """Return the request's OpenTelemetry headers, which make the client's span the parent of the engine's span."""
    headers: Mapping[str, str] = extract_trace_headers(request.headers)
    return headers
