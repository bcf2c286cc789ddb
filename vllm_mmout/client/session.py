"""Session: requests to one server of ours, and what its errors say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from vllm_mmout.client.address import KEYS
from vllm_mmout.client.errors import BrokenError, ServerError
from vllm_mmout.client.patience import Patience
from vllm_mmout.raster.remote.answers import asked_wait_s, distrust, ending, lateness, phrase
from vllm_mmout.raster.remote.connections import Connections, proxy_of
from vllm_mmout.version import __version__

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from vllm_mmout.raster.remote.fetch_options import FetchOptions

Answer = TypeVar("Answer")

_PROXY_FAILED = frozenset({502, 503, 504})
_LARGEST_JSON = 16 << 20
_LONGEST = 4000
"""Characters of an error that are shown."""


class Session:
    """Asks one server; use it in one thread, and close it.

    Args:
        server: the address below which its routes lie.
        key: its API key, where it has one.
        options: how long to wait, and how often to try.
        say: is told in a line what is waited for.

    Raises:
        InputError: the proxy that the environment names cannot be used.

    """

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

    def patience(self) -> Patience:
        """For one piece of work."""
        return Patience(self._options, self._say)

    def ask(self, method: str, path: str, into: type[Answer], **request: Any) -> Answer:
        """Ask for JSON, once.

        Args:
            method: of HTTP.
            path: below the server's address.
            into: what the answer must be.
            request: as of `answer`.

        Raises:
            BrokenError: it failed for a reason that may pass.
            ServerError: the server refuses, or is none of ours.

        """
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
        """The answer to one request, whose body is read from it; the connection is closed where it is not read whole.

        Args:
            method: of HTTP.
            path: below the server's address.
            headers: further headers.
            body: in pieces; its length is in the headers.
            takes: further statuses that are an answer, beside those of success.
            timeout_s: seconds within which the answer must begin; None: as the options have it.

        Raises:
            BrokenError: there is none, or it ended in the middle, for a reason that may pass.
            ServerError: the server refuses, or cannot be reached at all.

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
            with ending(response):
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
        own = _own_words(response.read(_LARGEST_JSON))
        words = own or f"{self.server} answered {phrase(status)}"
        if status == HTTPStatus.UNAUTHORIZED:
            return ServerError(f"{words} (401); give the server's key by --api-key or {' or '.join(KEYS)}", status)
        wait_s = asked_wait_s(response)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return BrokenError(words, wait_s=wait_s, answered=True)
        if status in _PROXY_FAILED and own is None:
            return BrokenError(words, wait_s=wait_s)
        return ServerError(words, status)

    def _broken(self, error: HTTPError, wait_s: float) -> Exception:
        """What failed below HTTP, in words; of a server that was never reached it is said at once."""
        distrusted = distrust(error)
        if distrusted is not None:
            return ServerError(f"the certificate of {self.server} {distrusted}")
        words = lateness(error, self._options.timeout, wait_s) or _cause(error)
        if not self._reached:
            return ServerError(
                f"{self.server} cannot be reached: {words}; see whether the server runs, and whether --server is right"
            )
        return BrokenError(f"the connection to {self.server} failed: {words}")


def _own_words(body: bytes) -> str | None:
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
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}..."


def _cause(error: BaseException) -> str:
    """What lies below an error of urllib3, whose own words name objects of Python."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return str(below.strerror)
        below = below.__cause__ or below.__context__
    last = error.args[-1] if error.args else error
    return _printable(str(last))[:300]
