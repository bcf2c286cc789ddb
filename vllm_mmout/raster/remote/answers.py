"""Answers of a server: what is said of them, why there is none, and how their connections are let go."""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, InvalidHeader, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3.response import BaseHTTPResponse


@contextmanager
def ending(response: BaseHTTPResponse) -> Iterator[BaseHTTPResponse]:
    """Close the connection of an answer that is not read whole, and give back its place among those to the server."""
    try:
        yield response
    finally:
        response.close()
        response.release_conn()  # which close() does not; once all places are taken, requests would wait for ever


def phrase(status: int) -> str:
    """A status with its name, where it has one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def asked_wait_s(response: BaseHTTPResponse) -> float:
    """Seconds that an answer asks to wait by its ``Retry-After``; 0 where it does not."""
    try:
        return float(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0")))
    except (InvalidHeader, ValueError, OverflowError):  # of numbers and dates that are none
        return 0.0


def lateness(error: HTTPError, connect_s: float, read_s: float) -> str | None:
    """What was waited for too long, in words; None where something else failed.

    Args:
        error: that ended a request.
        connect_s: seconds that a connection may take.
        read_s: seconds that an answer may take.

    """
    if not isinstance(error, NoAnswerError) or isinstance(error, NewConnectionError):
        return None
    if isinstance(error, ConnectTimeoutError):
        return f"no connection within {connect_s:g} s"
    return f"no answer, or next to nothing of it, within {read_s:g} s"


def distrust(error: HTTPError) -> str | None:
    """What is wrong with a server's certificate, which the sentence begins with; None where something else failed."""
    cause = error.args[0] if isinstance(error, SSLError) and error.args else None
    verify = getattr(cause, "verify_message", None)
    if not verify:
        return None
    return f"is not trusted ({verify}); name a file with the certificates that you trust in SSL_CERT_FILE"
