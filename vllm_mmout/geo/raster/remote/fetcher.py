"""Fetch a remote file or byte ranges of it, with retries after temporary failures."""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urljoin

from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationParseError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as NoAnswerError
from urllib3.util import parse_url

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import without_secrets
from vllm_mmout.geo.raster.remote.fetch_options import RETRIES, TIMEOUT, FetchOptions
from vllm_mmout.retries import BrokenError, call_with_retries, retry_after_s
from vllm_mmout.version import __version__

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse
    from urllib3.util.url import Url

    from vllm_mmout.geo.raster.remote.connections import Connections

_Result = TypeVar("_Result")

_WORTH_A_TRY = 2**19
"""Smallest number of received bytes that counts as progress. If the connection then breaks, the attempt does not count
as failed."""
_SHOWN = 300
"""Maximum length, in characters, of a connection error's text in a message. Longer texts are cut."""
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_MAY_PASS = frozenset({408, 429, 500, 502, 503, 504})
_EXPIRED = frozenset({400, 401, 403, 404, 410})
"""HTTP statuses that servers send if the signature of a signed address has expired."""
_REMEDIES = {
    401: "write user and password into the address, as https://user:password@host/...",
    403: "ask for permission, or for a new signature of the address",
    404: "check the address",
    410: "check the address",
}


class Fetcher:
    """Thread-safe client that sends the requests for one remote file.

    Redirects are followed. Later requests go directly to the target of the redirect, until that refuses a request.
    User and password of the address are sent to the host of the address only.
    """

    def __init__(self, address: str, options: FetchOptions, connections: Connections) -> None:
        self.name = without_secrets(address)
        """Address without secrets, for messages."""
        self.options = options
        self.closed = False
        parsed = _parsed(address)
        self._origin = self._target = parsed._replace(auth=None, fragment=None)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"vllm-mmout/{__version__}"}
        self._secret = {}
        if parsed.auth is not None:  # encoded as UTF-8 (RFC 7617, 2.1), which urllib3 does not do
            secret = b64encode(unquote(parsed.auth).encode()).decode()
            self._secret["Authorization"] = f"Basic {secret}"
        self._connections = connections
        self._ending = threading.Event()
        self._process = os.getpid()

    def retry(self, what: str, step: Callable[[], _Result], count_received: Callable[[], int] = lambda: 0) -> _Result:
        """Call ``step``. Call it again after a temporary failure (`BrokenError`), up to ``options.retries`` times.

        The retries follow after pauses. ``what`` names the data in error messages. ``count_received`` returns the
        number of bytes received so far, from where ``step`` continues. An attempt that received at least 512 KiB does
        not count as a failure, so a server may break any number of connections as long as each makes progress.
        """

        def checked_step() -> _Result:
            self._check_open()
            return step()

        retries, received = self.options.new_retries(), 0

        def wait(error: BrokenError) -> None:
            nonlocal received
            before, received = received, count_received()
            self._check_open()
            if error.wait_s > self.options.timeout:
                raise InputError(
                    f"{self.name}: {error}, and asks to wait {error.wait_s:.0f} s, longer than {TIMEOUT}"
                    f" ({self.options.timeout:g} s); try again later"
                ) from error
            pause = retries.failed(error.wait_s, counts=received - before < _WORTH_A_TRY)
            if pause is None:
                raise self._out_of_attempts(what, retries.failures, error) from error
            self._ending.wait(pause)

        return call_with_retries(checked_step, wait)

    @contextmanager
    def open_response(self, part: tuple[int, int] | None) -> Iterator[BaseHTTPResponse]:
        """Request the byte range ``part``, and yield the HTTP response. Request the whole file if ``part`` is None.

        The response has status 200, 206 or 416. The connection is closed unless the response is read to its end.
        """
        headers = {} if part is None else {"Range": f"bytes={part[0]}-{part[1] - 1}"}
        try:
            with closing(self._followed(self._target, headers)) as response:
                if response.status not in _EXPIRED or self._target is self._origin:
                    yield self._checked(response)
                    return
            with closing(self._followed(self._origin, headers)) as response:
                yield self._checked(response)
        except HTTPError as error:
            raise self._broken(error) from error
        finally:
            if self.closed:  # `close` was called during the request: close connections that were opened since then
                self._connections.close()

    def close(self) -> None:
        """Close the connections, even if other threads are using them. May be called more than once."""
        self.closed = True
        self._ending.set()
        self._connections.close()

    def _followed(self, url: Url, headers: dict[str, str]) -> BaseHTTPResponse:
        limit = self.options.redirects
        for _ in range(limit + 1):
            at_origin = (url.scheme, url.host, url.port) == (self._origin.scheme, self._origin.host, self._origin.port)
            response = self._connections.request(
                url.url, {**self._headers, **headers, **(self._secret if at_origin else {})}
            )
            location = response.headers.get("Location")
            if response.status not in _REDIRECTED or location is None:
                if response.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                    self._target = url
                return response
            with closing(response):
                url = self._redirected(url, _as_sent(location))
        if not limit:
            raise InputError(
                f"{self.name} redirects to {without_secrets(url.url)}, and redirects are not followed;"
                " give that address"
            )
        raise InputError(f"{self.name} redirects more than {limit} times, at last to {without_secrets(url.url)}")

    def _redirected(self, url: Url, location: str) -> Url:
        subject = f"{self.name} redirects to an address that"
        try:
            target = _parsed(urljoin(url.url, location), subject)
        except ValueError:  # of urljoin
            raise _not_understood(subject) from None
        if url.scheme == "https" and target.scheme != "https":
            raise InputError(
                f"{self.name} redirects from https to {without_secrets(target.url)}, which is not followed"
            )
        return target._replace(auth=None, fragment=None)

    def _checked(self, response: BaseHTTPResponse) -> BaseHTTPResponse:
        """Return the response if its status is 200, 206 or 416. Otherwise raise BrokenError or InputError."""
        status = response.status
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise InputError(
                    f"{self.name} is sent compressed ({encoding[:20]}), though the request excludes that; have the"
                    " server send it as it is"
                )
            return response
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return response
        words = f"the server answered {status_phrase(status)}"
        if status in _MAY_PASS:
            raise BrokenError(words, retry_after_s(response))
        raise InputError(f"{self.name}: {words}; {_REMEDIES.get(status, 'see whether a browser gets the file')}")

    def _out_of_attempts(self, what: str, failures: int, error: BrokenError) -> InputError:
        """Return the error for data that could not be fetched in the allowed number of attempts.

        ``what`` names the data in the message.
        """
        often = f"{failures} times" if failures > 1 else "once"
        return InputError(
            f"{self.name}: {what} cannot be fetched, tried {often}: {error}; try again later, or raise"
            f" {RETRIES} ({self.options.retries}) or {TIMEOUT} ({self.options.timeout:g} s)"
        )

    def _check_open(self) -> None:
        if self.closed:
            raise InputError(f"{self.name} is closed; open it again to read it")
        if os.getpid() != self._process:
            raise InputError(f"{self.name} was opened in another process; open it again in this one")

    def _broken(self, error: HTTPError) -> Exception:
        timeout = timeout_phrase(error, self.options.timeout, self.options.timeout)
        if timeout is not None:
            return BrokenError(timeout)
        certificate = certificate_fault(error)
        if certificate is not None:
            return InputError(f"{self.name}: the server's certificate {certificate}")
        last = error.args[-1] if error.args else None
        words = str(last if isinstance(last, Exception) else error)  # long if the response is not HTTP: all its bytes
        if isinstance(error, NewConnectionError):  # the message begins with the repr of a urllib3 object
            words = words.partition("): ")[2] or words
        return BrokenError(f"the connection failed: {words[:_SHOWN]}{'...' * (len(words) > _SHOWN)}")


def _parsed(address: str, what: str = "an address that begins with http:// or https://") -> Url:
    """Parse an http or https address. Errors do not show an invalid address, since it may contain a password."""
    try:
        url = parse_url(address.strip())
    except LocationParseError:
        raise _not_understood(what) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InputError(f"{what} has no host, or another scheme than http and https; it must be https://host/path")
    return url


def _as_sent(header: str) -> str:
    """Restore the UTF-8 text that the server sent as a header value, since http.client decodes headers as Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _not_understood(what: str) -> InputError:
    return InputError(f"{what} cannot be understood; it must be https://host/path")


def status_phrase(status: int) -> str:
    """Return an HTTP status with its standard phrase, such as "404 Not Found".

    Return only the number if the status has no standard phrase.
    """
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def timeout_phrase(error: HTTPError, connect_s: float, read_s: float) -> str | None:
    """Return a phrase for a timeout, such as "no connection within 30 s", or None if the error is not a timeout."""
    if not isinstance(error, NoAnswerError) or isinstance(error, NewConnectionError):
        return None
    if isinstance(error, ConnectTimeoutError):
        return f"no connection within {connect_s:g} s"
    return f"no answer, or too little of it, within {read_s:g} s"


def certificate_fault(error: HTTPError) -> str | None:
    """Return the fault of a server's certificate, as the end of a sentence that begins with "the certificate".

    Return None if the error has another reason.
    """
    cause = error.args[0] if isinstance(error, SSLError) and error.args else None
    verify = getattr(cause, "verify_message", None)
    if not verify:
        return None
    return f"is not trusted ({verify}); name a file with the certificates that you trust in SSL_CERT_FILE"
