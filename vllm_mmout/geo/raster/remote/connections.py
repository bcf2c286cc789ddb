"""Connect to HTTP and HTTPS servers, and raise a timeout error if a response arrives too slowly."""

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
"""IP address of a host, as an item of the list that ``socket.getaddrinfo`` returns."""

_KEPT = 8
"""Largest number of idle connections that are kept open to a server, one for each thread that fetches blocks of a
file."""
_SLOWEST = 1024
"""Lowest accepted speed of a response, in bytes per second. Without this limit, a server that sends single bytes could
keep a connection busy forever."""


class Connections:
    """Connections to the servers of one open remote file, kept between requests and closed with the file.

    Requests go directly or through a proxy, as HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say. A subclass may
    override `request` to refuse addresses, and `lookup` to refuse IP addresses of a host.
    """

    def __init__(self, options: FetchOptions) -> None:
        self._timeout = urllib3.Timeout(connect=options.timeout, read=options.timeout)
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._made: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._making = threading.Lock()

    def request(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Send a GET request and return the response. The body of the response is not read yet.

        Reading the body does not decompress it.
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
            retries=False,  # `Fetcher` retries, since urllib3 would log the URL with the signature in its query
            preload_content=False,
            decode_content=False,
            timeout=self._timeout,
        )

    def manager(self, proxy: str | None) -> urllib3.PoolManager:
        """Create a urllib3 pool manager that connects through ``proxy``, or directly if ``proxy`` is None."""
        settings: dict[str, Any] = {"maxsize": _KEPT}
        manager = urllib3.PoolManager(**settings) if proxy is None else _through(proxy, settings)
        pools = {
            "http": partial(_Pool, owner=self, proxied=bool(proxy)),
            "https": partial(_SecurePool, owner=self, proxied=bool(proxy)),
        }
        manager.pool_classes_by_scheme = cast("dict[str, type[Any]]", pools)
        return manager

    def lookup(self, host: str, port: int) -> Sequence[ResolvedAddress]:
        """Return the IP addresses of a host. A connection tries the addresses in this order.

        Other addresses are not tried.
        """
        return socket.getaddrinfo(host, port, allowed_gai_family(), socket.SOCK_STREAM)

    def add(self, connection: HTTPConnection) -> None:
        """Register a connection that ``close()`` must close."""
        with self._making:
            self._made.add(connection)

    def close(self) -> None:
        """Close all connections, even if they are in use. A thread that reads from them gets an error at once."""
        with self._making:
            connections = list(self._made)
        for connection in connections:
            open_socket = connection.sock
            if open_socket is not None:
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
        for manager in list(self._managers.values()):
            for key in manager.pools.keys():  # noqa: SIM118 - it cannot be iterated over
                pool = manager.pools.get(key)
                if pool is not None:  # `clear` alone leaves the sockets open until the pool is collected
                    pool.close()
            manager.clear()


class _WatchedReader(io.RawIOBase):
    """Socket reader that raises TimeoutError if less than 1 KiB per second arrives during a timeout period."""

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
    """HTTP response that raises TimeoutError if its status line, headers or body arrive too slowly."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        period = sock.gettimeout()
        if period is not None:
            self.fp = io.BufferedReader(_WatchedReader(self.fp.detach(), period))


class _Connection(HTTPConnection):
    """HTTP connection to a proxy, or to one of the IP addresses that ``Connections.lookup`` returns for the host."""

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
            addresses = self._owner.lookup(self._dns_host.strip("[]"), self.port)
            return _connect_to_any(addresses, self.timeout, self.socket_options)
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


def _connect_to_any(addresses: Sequence[ResolvedAddress], timeout: Any, options: Any) -> socket.socket:
    """Return a socket connected to the first of ``addresses`` that accepts the connection.

    ``timeout`` is for all addresses together. With a timeout for each, a host with hundreds of addresses would block
    the thread for a long time.
    """
    end = time.monotonic() + timeout if isinstance(timeout, int | float) else math.inf
    failure = OSError("the host has no address")
    for remaining, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = max(end - time.monotonic(), 0.001) / remaining
        try:
            return connected(address, share if math.isfinite(share) else None, options or ())
        except OSError as error:
            failure = error
    raise failure


def connected(where: ResolvedAddress, timeout: float | None, options: Sequence[tuple[Any, ...]]) -> socket.socket:
    """Return a socket connected to the IP address ``where``. ``timeout`` is in seconds, or None for no limit."""
    new_socket = socket.socket(*where[:3])
    try:
        for option in options:
            new_socket.setsockopt(*option)
        new_socket.settimeout(timeout)
        new_socket.connect(where[4])
    except BaseException:
        new_socket.close()
        raise
    return new_socket


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy that environment variables set for ``url``, or None."""
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
