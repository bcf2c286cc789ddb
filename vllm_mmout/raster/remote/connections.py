"""Connections to servers of http and https, each given up when its answer comes too slowly."""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ClosedPoolError,
    ConnectTimeoutError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
)
from urllib3.util.connection import allowed_gai_family

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3.response import BaseHTTPResponse

    from vllm_mmout.raster.remote.fetch_options import FetchOptions

Found: TypeAlias = tuple[Any, ...]
"""One answer of ``socket.getaddrinfo``."""
Lookup: TypeAlias = Callable[[str, int], Sequence[Found]]

_AT_ONCE = 8
"""Connections of one file to one server; threads that want more of them wait."""
_SLOWEST = 1024
"""Bytes a second below which an answer counts as none: a limit between two pieces alone could be stretched for ever."""


class Connections:
    """The connections of one opened file: kept for its next request, closed with it.

    Where requests go, directly or through the proxies of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, is decided
    here. A subclass may refuse: an address in `request`, the IP addresses that a host has in `lookup`.

    Args:
        options: how long to wait.

    """

    def __init__(self, options: FetchOptions) -> None:
        self._timeout = urllib3.Timeout(connect=options.timeout, read=options.timeout)
        self._managers: dict[str | None, urllib3.PoolManager] = {}

    def request(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Ask for a file; the answer's body is read from it, as it is sent.

        Args:
            url: its address, without user and password.
            headers: what to send along.

        Raises:
            urllib3.exceptions.HTTPError: there is no answer.
            InputError: the proxy that the environment names cannot be used.

        """
        proxy = proxy_of(url)
        manager = self._managers.get(proxy)
        if manager is None:
            manager = self._managers.setdefault(proxy, self.manager(proxy))
        return manager.request(
            "GET",
            url,
            headers=headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=self._timeout,
        )

    def manager(self, proxy: str | None) -> urllib3.PoolManager:
        """The pools of connections that go through one proxy, or directly."""
        settings: dict[str, Any] = {"maxsize": _AT_ONCE, "block": True}
        manager = urllib3.PoolManager(**settings) if proxy is None else _through(proxy, settings)
        lookup = self.lookup if proxy is None else None
        pools = {"http": partial(_Pool, lookup=lookup), "https": partial(_SecurePool, lookup=lookup)}
        manager.pool_classes_by_scheme = cast("dict[str, type[Any]]", pools)
        return manager

    def lookup(self, host: str, port: int) -> Sequence[Found]:
        """The IP addresses of a host, which are tried in turn, and no other.

        Raises:
            OSError: there are none.
            UnicodeError: the host cannot be one.

        """
        return socket.getaddrinfo(host, port, allowed_gai_family(), socket.SOCK_STREAM)

    def close(self) -> None:
        """Close all, those in use too: whoever reads from one gets an error at once."""
        for manager in list(self._managers.values()):
            for key in list(manager.pools.keys()):
                pool = manager.pools.get(key)
                if isinstance(pool, _KnownConnections):
                    pool.end()
            manager.clear()


class _WatchedReader(io.RawIOBase):
    """What a socket gives, until it gives too little."""

    def __init__(self, raw: io.RawIOBase, period: float) -> None:
        self._raw = raw
        self._period = period
        self._began = time.monotonic()
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        count = self._raw.readinto(buffer)
        self._received += count or 0
        now = time.monotonic()
        if now - self._began > self._period:
            if self._received < _SLOWEST * self._period:
                raise TimeoutError(f"{self._received} bytes in {now - self._began:.0f} s")
            self._began, self._received = now, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _WatchedResponse(http.client.HTTPResponse):
    """An answer whose status, headers and body are read so."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        period = sock.gettimeout()
        if period is not None:
            self.fp = io.BufferedReader(_WatchedReader(self.fp.detach(), period))


class _LookingUp(HTTPConnection):
    """A connection to one of the addresses that a function finds."""

    lookup: Lookup | None = None

    def _new_conn(self) -> socket.socket:
        if self.lookup is None:
            return super()._new_conn()
        try:
            return _first_of(self.lookup(self._dns_host.strip("[]"), self.port), self.timeout, self.socket_options)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except UnicodeError:
            raise LocationParseError(f"{self.host!r}, label empty or too long") from None
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection to {self.host} within {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error


class _Connection(_LookingUp):
    response_class = _WatchedResponse


class _SecureConnection(_LookingUp, HTTPSConnection):
    response_class = _WatchedResponse


class _KnownConnections(HTTPConnectionPool):
    """A pool that knows its connections, those in use too."""

    def __init__(self, *args: Any, lookup: Lookup | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lookup = lookup
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._making = threading.Lock()
        self._ended = False

    def _get_conn(self, timeout: float | None = None) -> Any:
        waited_for = self.pool
        connection = super()._get_conn(timeout)
        if self._ended:
            connection.close()
            self._wake_one(waited_for)
            raise ClosedPoolError(self, "closed by another thread")
        return connection

    def _new_conn(self) -> Any:
        connection: Any = super()._new_conn()
        connection.lookup = self._lookup
        with self._making:
            self._made.add(connection)
        return connection

    def end(self) -> None:
        """Close all; reads in other threads end, and so does waiting for a connection."""
        waited_for = self.pool
        self._ended = True
        with self._making:
            made = list(self._made)
        for connection in made:
            used = connection.sock
            if used is not None:
                with contextlib.suppress(OSError):
                    used.shutdown(socket.SHUT_RDWR)
        self.close()
        self._wake_one(waited_for)

    @staticmethod
    def _wake_one(waited_for: queue.Queue[Any] | None) -> None:
        """End the wait of one thread, which wakes the next: urllib3 leaves them waiting for ever."""
        if waited_for is not None:
            with contextlib.suppress(queue.Full):
                waited_for.put_nowait(None)


class _Pool(_KnownConnections):
    ConnectionCls = _Connection


class _SecurePool(_KnownConnections, HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _first_of(found: Sequence[Found], timeout: Any, options: Any) -> socket.socket:
    """A connection to the first of some addresses that takes one; they share the time that there is."""
    end = time.monotonic() + timeout if isinstance(timeout, int | float) else math.inf
    failure = OSError("the host has no address")
    for more, where in zip(range(len(found), 0, -1), found, strict=True):
        share = max(end - time.monotonic(), 0.001) / more
        try:
            return connected(where, share if math.isfinite(share) else None, options or ())
        except OSError as error:
            failure = error
    raise failure


def connected(where: Found, timeout: float | None, options: Sequence[tuple[Any, ...]]) -> socket.socket:
    """A connection to an address."""
    made = socket.socket(*where[:3])
    try:
        for option in options:
            made.setsockopt(*option)
        made.settimeout(timeout)
        made.connect(where[4])
    except BaseException:
        made.close()
        raise
    return made


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _through(proxy: str, settings: Mapping[str, Any]) -> urllib3.ProxyManager:
    try:
        user = urlsplit(proxy)
        headers = None
        if user.username is not None:
            secret = f"{unquote(user.username)}:{unquote(user.password or '')}"
            headers = urllib3.make_headers(proxy_basic_auth=secret)
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise InputError(
            f"the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used ({type(error).__name__}): it"
            " must be http://host:port"
        ) from error
