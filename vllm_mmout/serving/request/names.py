"""What a request is called, by the client and in its traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from vllm.tracing import extract_trace_headers

if TYPE_CHECKING:
    from starlette.requests import Request


def request_id(request: Request, kind: str) -> str:
    """A name for a request: what the client calls it, and what no other request is called."""
    given = "".join(sign for sign in request.headers.get("x-request-id", "")[:64] if sign.isalnum() or sign in "-_")
    return "-".join(part for part in (kind, given, uuid4().hex) if part)


def trace_headers(request: Request) -> Mapping[str, str]:
    """The client's span of OpenTelemetry, below which that of the request lies; empty without one."""
    headers: Mapping[str, str] = extract_trace_headers(request.headers)
    return headers
