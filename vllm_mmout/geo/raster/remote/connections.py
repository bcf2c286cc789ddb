"""Connections to servers of http and https, each given up when its answer comes too slowly."""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse


ResolvedAddress: TypeAlias = tuple[Any, ...]
"""One answer of ``socket.getaddrinfo``."""

_KEPT = 8
"""Connections of one file to one server that are kept for its next request, as many as threads read it."""
_SLOWEST = 1024
"""Bytes a second below which an answer counts as none: a limit between two pieces alone could be stretched for ever."""


class Connections:
    """The connections of one opened file: kept for its next request, closed with it.

    Where requests go, directly or through the proxies of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, is decided
    here. A subclass may refuse: an address in `request`, the IP addresses that a host has in `lookup`.
    """

    def __init__(self, options: FetchOptions) -> None:
        self._timeout = urllib3.Timeout(connect=options.timeout, read=options.timeout)
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._made: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._making = threading.Lock()

    def request(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Ask for a file; the answer's body is read from it, as it is sent."""
        proxy = proxy_of(url)
        manager = self._managers.get(proxy)
        if manager is None:
            manager = self._managers.setdefault(proxy, self.manager(proxy))
        return manager.request(
            "GET",
            url,
            headers=headers,
            redirect=False,
            retries=False,  # `Fetcher` repeats: urllib3 would log the address, with the signature in its query
            preload_content=False,
            decode_content=False,
            timeout=self._timeout,
        )

    def manager(self, proxy: str | None) -> urllib3.PoolManager:
        """The pools of connections that go through one proxy, or directly."""
        settings: dict[str, Any] = {"maxsize": _KEPT}
        manager = urllib3.PoolManager(**settings) if proxy is None else _through(proxy, settings)
        pools = {
            "http": partial(_Pool, owner=self, proxied=bool(proxy)),
            "https": partial(_SecurePool, owner=self, proxied=bool(proxy)),
        }
        manager.pool_classes_by_scheme = cast("dict[str, type[Any]]", pools)
        return manager

    def lookup(self, host: str, port: int) -> Sequence[ResolvedAddress]:
        """The IP addresses of a host, which are tried in turn, and no other."""
        return socket.getaddrinfo(host, port, allowed_gai_family(), socket.SOCK_STREAM)

    def add(self, connection: HTTPConnection) -> None:
        """Note a connection, to be closed with the others."""
        with self._making:
            self._made.add(connection)

    def close(self) -> None:
        """Close all, those in use too: whoever reads from one gets an error at once."""
        with self._making:
            made = list(self._made)
        for connection in made:
            used = connection.sock
            if used is not None:
                with contextlib.suppress(OSError):
                    used.shutdown(socket.SHUT_RDWR)
        for manager in list(self._managers.values()):
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


class _Connection(HTTPConnection):
    """A connection to one of the addresses that its owner finds, unless it is to a proxy."""

    response_class = _WatchedResponse

    def __init__(self, *args: Any, owner: Connections, proxied: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner
        self._proxied = proxied
        owner.add(self)

    def _new_conn(self) -> socket.socket:
        if self._proxied:
            return super()._new_conn()
        try:
            found = self._owner.lookup(self._dns_host.strip("[]"), self.port)
            return _first_of(found, self.timeout, self.socket_options)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except UnicodeError:
            raise LocationParseError(f"{self.host!r}, label empty or too long") from None
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection to {self.host} within {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _first_of(found: Sequence[ResolvedAddress], timeout: Any, options: Any) -> socket.socket:
    """A connection to the first of some addresses that takes one.

    They share the time that there is: with a limit for each, a host of hundreds of addresses would hold a thread long.
    """
    end = time.monotonic() + timeout if isinstance(timeout, int | float) else math.inf
    failure = OSError("the host has no address")
    for more, where in zip(range(len(found), 0, -1), found, strict=True):
        share = max(end - time.monotonic(), 0.001) / more
        try:
            return connected(where, share if math.isfinite(share) else None, options or ())
        except OSError as error:
            failure = error
    raise failure


def connected(where: ResolvedAddress, timeout: float | None, options: Sequence[tuple[Any, ...]]) -> socket.socket:
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
