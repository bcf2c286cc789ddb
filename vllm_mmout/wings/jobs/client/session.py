"""Session: requests to one server of ours, what its errors say, and how often is tried again."""

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
    BrokenError,
    Connections,
    FetchOptions,
    certificate_fault,
    proxy_of,
    retry_after_s,
    status_phrase,
    timeout_phrase,
)
from vllm_mmout.version import __version__

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

Answer = TypeVar("Answer")

KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Variables that may hold the key; the first that is set counts. A server of vLLM reads the first one too."""
_LONGEST_ASKED = 600.0
"""Seconds that a server may ask to wait."""
_PROXY_FAILED = frozenset({502, 503, 504})
_LARGEST_JSON = 16 << 20
_SHOWN = 4000
"""Characters of an error that are shown."""


class ServerError(MMOutError):
    """A server refused, failed, or cannot be reached; where it said why, in its own words."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TemporaryError(BrokenError):
    """A request failed for a reason that may pass; ``answered`` where the server itself said so."""

    def __init__(self, words: str, *, wait_s: float = 0.0, answered: bool = False) -> None:
        super().__init__(words, wait_s)
        self.answered = answered


@dataclass(slots=True)
class Retries:
    """Counts the failures of one piece of work since it last went on, and waits between its tries."""

    options: FetchOptions
    say: Callable[[str], None]
    failures: int = 0

    def wait(self, error: TemporaryError) -> None:
        """Wait before the next try; raises `ServerError` after too many, and where the server asks for too long."""
        self.failures += 1
        if self.failures > self.options.retries:
            often = f"tried {self.failures} times" if self.failures > 1 else "tried once"
            raise ServerError(f"{error} ({often}; {RETRIES} in the environment says how often)") from error
        if error.wait_s > _LONGEST_ASKED:
            raise ServerError(f"{error} (the server asks to wait {error.wait_s:.0f} s; try again then)") from error
        pause = max(self.options.pause(self.failures), error.wait_s)
        self.say(f"{error}; trying again in {pause:.3g} s")
        time.sleep(pause)


class Session:
    """Asks one server; use it in one thread, and close it."""

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

    def retries(self) -> Retries:
        """For one piece of work."""
        return Retries(self._options, self._say)

    def get(self, path: str, into: type[Answer]) -> Answer:
        """Ask for JSON, again after a pause where that fails for a reason that may pass; see `ask`."""
        retries = self.retries()
        while True:
            try:
                return self.ask("GET", path, into)
            except TemporaryError as error:
                retries.wait(error)

    def ask(self, method: str, path: str, into: type[Answer], **request: Any) -> Answer:
        """Ask for JSON, once; raises `TemporaryError` where it fails for a reason that may pass, else `ServerError`."""
        with self.answer(method, path, **request) as response:
            body = response.read(_LARGEST_JSON)
        try:
            return msgspec.json.decode(body, type=into)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerError(
                f"{self.server}{path} answered something else than a server of vllm-mmout ({error}); see whether"
                " --server is right"
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
        """The answer to one request, whose body is read from it; errors as of `ask`.

        ``takes`` are further statuses that are an answer; ``timeout_s`` are seconds within which it must begin.
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
        """What an answer says that is no success."""
        status = response.status
        location = response.headers.get("Location")
        if location is not None and HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            return ServerError(f"{self.server} redirects to {_printable(location)}; give that server by --server")
        own = _error_message(response.read(_LARGEST_JSON))
        words = own or f"{self.server} answered {status_phrase(status)}"
        if status == HTTPStatus.UNAUTHORIZED:
            return ServerError(f"{words} (401); give the server's key by --api-key or {' or '.join(KEYS)}", status)
        full = status == HTTPStatus.TOO_MANY_REQUESTS
        if full or (status in _PROXY_FAILED and own is None):
            return TemporaryError(words, wait_s=retry_after_s(response), answered=full)
        return ServerError(words, status)

    def _broken(self, error: HTTPError, wait_s: float) -> Exception:
        """What failed below HTTP, in words; of a server that was never reached it is said at once."""
        if (distrusted := certificate_fault(error)) is not None:
            return ServerError(f"the certificate of {self.server} {distrusted}")
        words = timeout_phrase(error, self._options.timeout, wait_s) or _cause(error)
        if not self._reached:
            return ServerError(
                f"{self.server} cannot be reached: {words}; see whether the server runs, and whether --server is right"
            )
        return TemporaryError(f"the connection to {self.server} failed: {words}")


def _error_message(body: bytes) -> str | None:
    """What the JSON of an error says, in OpenAI's form or in that of vLLM's 401; None of anything else."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    error = said.get("error") if isinstance(said, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return _printable(message) if isinstance(message, str) and message else None


def _printable(text: str) -> str:
    """Text of a server as a terminal may get it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_SHOWN])
    return shown if len(text) <= _SHOWN else f"{shown}..."


def _cause(error: BaseException) -> str:
    """What lies below an error of urllib3, whose own words name objects of Python."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return str(below.strerror)
        below = below.__cause__ or below.__context__
    last = error.args[-1] if error.args else error
    return _printable(str(last))[:300]
