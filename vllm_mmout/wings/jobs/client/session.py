"""Send HTTP requests to one vllm-mmout server, with retries and readable errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from vllm_mmout.errors import MMOutError
from vllm_mmout.geo import (
    RETRIES,
    Connections,
    FetchOptions,
    certificate_fault,
    proxy_of,
    status_phrase,
    timeout_phrase,
)
from vllm_mmout.retries import BrokenError, Retries, call_with_retries, retry_after_s
from vllm_mmout.version import __version__

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

Answer = TypeVar("Answer")

KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the API key, in order of preference. vLLM's server also reads VLLM_API_KEY."""
_LONGEST_ASKED = 600.0
"""Longest pause in seconds that a server may request with the header Retry-After.

If the server requests a longer pause, the client gives up.
"""
_PROXY_FAILED = frozenset({502, 503, 504})
"""HTTP statuses that a proxy sends while it cannot reach the server."""
_LARGEST_JSON = 16 << 20
"""Maximum number of bytes that are read from a JSON response."""
_SHOWN = 4000
"""Maximum number of characters of a server's error message that are shown to the user."""


class ServerError(MMOutError):
    """Error for a request that the server refused, or that failed before the server answered.

    The message is the server's own if it sent one. ``status`` is the HTTP status, or None if there is none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TemporaryError(BrokenError):
    """Error for a failed request that may succeed if it is repeated.

    ``wait_s`` is the pause that the server asked for, in seconds. ``answered`` is whether the server itself refused the
    request because it is full, rather than a proxy or the connection failing.
    """

    def __init__(self, words: str, *, wait_s: float = 0.0, answered: bool = False) -> None:
        super().__init__(words, wait_s)
        self.answered = answered


@dataclass(slots=True)
class Waiting:
    """Retry timer of one operation. It pauses between attempts, and gives up when all retries are used."""

    retries: Retries
    say: Callable[[str], None]

    def wait(self, error: BrokenError) -> None:
        """Report the error to the user, and pause before the next attempt.

        Raises:
            ServerError: the retries are used up, or the server asks for a pause that is too long.

        """
        pause = self.retries.failed(error.wait_s)
        if pause is None:
            failures = self.retries.failures
            often = f"tried {failures} times" if failures > 1 else "tried once"
            raise ServerError(f"{error} ({often}; {RETRIES} in the environment sets the number of retries)") from error
        if error.wait_s > _LONGEST_ASKED:
            raise ServerError(f"{error} (the server asks to wait {error.wait_s:.0f} s; try again then)") from error
        self.say(f"{error}; trying again in {pause:.3g} s")
        time.sleep(pause)


class Session:
    """HTTP client for one server. It is not thread-safe, and must be closed."""

    def __init__(self, server: str, key: str | None, options: FetchOptions, say: Callable[[str], None]) -> None:
        self.server = server
        self._options = options
        self._say = say
        self._connections = Connections(options)
        self._manager = self._connections.manager(proxy_of(server))
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"vllm-mmout/{__version__}"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._reached = False

    def new_waiting(self) -> Waiting:
        """Return a new retry timer, for one operation."""
        return Waiting(self._options.new_retries(), self._say)

    def get(self, path: str, into: type[Answer]) -> Answer:
        """Send a GET request, retry temporary failures, and decode the JSON response as the type ``into``.

        Raises:
            ServerError: the request failed, and the retries are used up or cannot help.

        """
        return call_with_retries(lambda: self.ask("GET", path, into), self.new_waiting().wait)

    def ask(self, method: str, path: str, into: type[Answer], **request: Any) -> Answer:
        """Send a request once, without retries, and decode the JSON response as the type ``into``.

        Further keyword arguments are passed to `answer`.

        Raises:
            TemporaryError: the request failed, but may succeed later.
            ServerError: the request failed for another reason.

        """
        with self.answer(method, path, **request) as response:
            body = response.read(_LARGEST_JSON)
        try:
            return msgspec.json.decode(body, type=into)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerError(
                f"{self.server}{path} did not answer like a vllm-mmout server ({error}); check that --server is right"
            ) from error

    @contextmanager
    def answer(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Iterator[bytes] | None = None,
        takes: frozenset[int] = frozenset(),
        timeout_s: float | None = None,
    ) -> Iterator[BaseHTTPResponse]:
        """Send a request once, and yield the response before its body is read.

        Args:
            method: the HTTP method.
            path: the URL path, relative to the server's base URL.
            headers: headers in addition to those of the session.
            body: the body of the request, in pieces.
            takes: HTTP statuses that count as success in addition to 2xx.
            timeout_s: seconds within which the response must begin. None: the session's timeout.

        Raises:
            TemporaryError: the request failed, but may succeed later.
            ServerError: the request failed for another reason.

        """
        wait_s = self._options.timeout if timeout_s is None else timeout_s
        try:
            response = self._manager.request(
                method,
                f"{self.server}{path}",
                headers={**self._headers, **(headers or {})},
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=self._options.timeout, read=wait_s),
            )
            self._reached = True
            with closing(response):
                if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES and response.status not in takes:
                    raise self._refused(response)
                yield response
        except HTTPError as error:
            raise self._broken(error, wait_s) from error

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _refused(self, response: BaseHTTPResponse) -> Exception:
        """Return the exception that describes an error response."""
        status = response.status
        location = response.headers.get("Location")
        if location is not None and HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            return ServerError(f"{self.server} redirects to {_printable(location)}; pass that address as --server")
        server_message = _error_message(response.read(_LARGEST_JSON))
        message = server_message or f"{self.server} answered {status_phrase(status)}"
        if status == HTTPStatus.UNAUTHORIZED:
            return ServerError(f"{message} (401); give the server's key with --api-key or {' or '.join(KEYS)}", status)
        is_full = status == HTTPStatus.TOO_MANY_REQUESTS
        if is_full or (status in _PROXY_FAILED and server_message is None):
            return TemporaryError(message, wait_s=retry_after_s(response), answered=is_full)
        return ServerError(message, status)

    def _broken(self, error: HTTPError, wait_s: float) -> Exception:
        """Return the exception for a broken connection: a `TemporaryError` if a retry may help, else a `ServerError`.

        A retry may help if the server has already answered a request of this session.
        """
        if (fault := certificate_fault(error)) is not None:
            return ServerError(f"the certificate of {self.server} {fault}")
        message = timeout_phrase(error, self._options.timeout, wait_s) or _cause(error)
        if not self._reached:
            return ServerError(
                f"{self.server} cannot be reached: {message}; check that the server runs and that --server is right"
            )
        return TemporaryError(f"the connection to {self.server} failed: {message}")


def _error_message(body: bytes) -> str | None:
    """Return the message in a JSON error of OpenAI's or vLLM's form, or None for any other body."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    error = content.get("error") if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return _printable(message) if isinstance(message, str) and message else None


def _printable(text: str) -> str:
    """Return a server's text for display in a terminal: shortened, and without control characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_SHOWN])
    return shown if len(text) <= _SHOWN else f"{shown}..."


def _cause(error: BaseException) -> str:
    """Return a readable message for a urllib3 error: the operating system's message if an OSError caused it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    last = error.args[-1] if error.args else error
    return _printable(str(last))[:300]
