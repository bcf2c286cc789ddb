"""Check the URLs that clients ask the server to fetch, so that they cannot reach hosts of a private network."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Connections, ResolvedAddress, proxy_of, without_secrets

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from vllm_mmout.geo import FetchOptions

FLAG: Final = "--allowed-media-domains"
_LONGEST: Final = 100
"""Maximum number of characters of a host name in an error message."""

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            "168.63.129.16/32",  # a public number, but in Azure it is the host of each virtual machine
        ),
    )
)
"""IPv4 networks that are not on the public Internet, from IANA's registry. The address of an Azure machine's host is
included as well.

The similar list in `ipaddress` is not used, because that list differs between Python releases.
"""
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        # Teredo (2001::/32) and 6to4 (2002::/16) embed an IPv4 address, and are obsolete.
        ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)
"""IPv6 networks within 2000::/3 that are not on the public Internet, from IANA's registry."""
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The 32 bits before the embedded IPv4 address in an ISATAP address (RFC 5214)."""


def is_public(text: str) -> bool:
    """Return whether an IP address is on the public Internet. An IPv4 address embedded in it must be public too."""
    try:
        return _is_public(ip_address(text))
    except ValueError:  # an address of another family
        return False


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None:
        return False
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return _is_public(last)
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and not _is_public(last):
        return False
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


class Domains:
    """Hosts that the server may fetch files from: any public host, or only the hosts that the operator listed."""

    def __init__(self, listed: Sequence[str] | None = None) -> None:
        self._listed = frozenset(map(_folded, listed or ()))

    def lists(self, host: str) -> bool:
        """Return whether ``--allowed-media-domains`` lists a host. A listed host may have private IP addresses."""
        return _folded(host) in self._listed

    def check_host(self, host: str) -> None:
        """Raise InputError if the operator listed the allowed hosts, and this host is not among them."""
        if self._listed and not self.lists(host):
            raise _HostRefusedError(
                f"host {_shown(host)}, which is not among those that this server fetches from; send the file itself, or"
                f" have the host added to {FLAG}"
            )

    def check_resolved(self, host: str, addresses: Sequence[ResolvedAddress]) -> None:
        """Raise InputError if a host has an IP address that is private or belongs to this machine.

        Hosts that the operator listed may have such addresses.
        """
        if not self.lists(host) and not all(is_public(address[4][0]) and not _is_own(address) for address in addresses):
            raise _HostRefusedError(
                f"host {_shown(host)}, which is not of the public Internet; send the file itself, or have the host"
                f" added to {FLAG}"
            )


class _HostRefusedError(InputError):
    """Error for a host that the server may not fetch from. The caller adds the URL to its message."""


class GuardedConnections(Connections):
    """HTTP connections that only reach hosts and IP addresses from which the server may fetch files.

    The host of each request and redirect is checked, and then the IP address to which the socket connects. If only
    names were checked, a name could resolve to another address later (DNS rebinding).

    If the environment sets a proxy, the proxy connects, as the operator chose. The host is still looked up and checked
    here, if its name is known here.
    """

    def __init__(self, options: FetchOptions, domains: Domains) -> None:
        super().__init__(options)
        self._domains = domains
        self._first: str | None = None

    def request(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Request the file at a URL. Raise InputError if the server may not fetch files from the URL's host."""
        if self._first is None:
            self._first = url
        try:
            host, port = host_of(url)
            self._domains.check_host(host)
            if proxy_of(url) is not None:
                self._check_behind_proxy(host, port)
            return super().request(url, headers)
        except _HostRefusedError as error:
            how = "is on" if url == self._first else "redirects to"
            raise InputError(f"{without_secrets(self._first)} {how} {error}") from None

    def lookup(self, host: str, port: int) -> Sequence[ResolvedAddress]:
        """Return the IP addresses of a host. Raise InputError if the server may not connect to them."""
        found = super().lookup(host, port)
        self._domains.check_resolved(host, found)
        return found

    def _check_behind_proxy(self, host: str, port: int) -> None:
        try:
            self.lookup(host, port)
        except (OSError, UnicodeError):  # only the proxy knows the name
            return


def host_of(url: str) -> tuple[str, int]:
    """Return (host, port) of a URL. The brackets of an IPv6 address are removed."""
    try:
        parts, other = parse_url(url), urlsplit(url).hostname or ""
    except (LocationParseError, ValueError):
        raise _not_understood() from None
    host = (parts.host or "").strip("[]")
    escaped = "%" in host and ":" not in host
    if not host or escaped or _folded(other) != _folded(host):
        raise _not_understood()
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _not_understood() -> InputError:
    return InputError("the address has a host that cannot be understood; it must be https://host/path")


def _folded(host: str) -> str:
    """Normalise a host name for comparisons: to lower case, without the final dot, and to ASCII (IDNA)."""
    host = host.strip().strip("[]").lower().removesuffix(".")
    if host.isascii():
        return host
    try:
        return parse_url(f"http://{host}/").host or host  # in the spelling of the DNS
    except LocationParseError:
        return host


def _shown(host: str) -> str:
    return repr(host if len(host) <= _LONGEST else f"{host[:_LONGEST]}...")


def _is_own(resolved: ResolvedAddress) -> bool:
    """Return whether an IP address belongs to this machine.

    A socket is connected to the address. If the address is the machine's own, the system also chooses it as the
    socket's source address.
    """
    try:
        with socket.socket(resolved[0], socket.SOCK_DGRAM) as probe:
            probe.connect(resolved[4])  # sends nothing, but the system chooses the source address
            return bool(probe.getsockname()[0] == resolved[4][0])
    except OSError:  # the address cannot be reached
        return False
