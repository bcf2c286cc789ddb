"""Which hosts are fetched from: by the address that is connected to, at every hop."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from http_server import a_running_server, a_server, no_proxies, running  # noqa: F401 - fixtures

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote import connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote
from vllm_mmout.serving.inputs import addresses
from vllm_mmout.serving.inputs.addresses import Domains, GuardedConnections, host_of, is_public

pytestmark = pytest.mark.engine

QUICK = FetchOptions(timeout=10, retries=1, backoff=0.01)
DATA = np.random.default_rng(3).bytes(300_000)
PUBLIC = "93.184.216.34"
REFUSED = "is not of the public Internet; .* --allowed-media-domains"

INSIDE = [
    *["127.0.0.1", "127.255.255.254", "0.0.0.1", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
    *["169.254.169.254", "100.64.0.1", "100.127.255.255", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1"],
    *["239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1", "168.63.129.16", "203.0.113.5", "::", "::1"],
    *["::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fe80::1%lo", "fc00::1", "fd00:ec2::254"],
    *[
        "fec0::1",
        "ff02::1",
        "64:ff9b::7f00:1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2002:808::",
    ],
    *["2001:0:1::1", "2001:db8::1", "3fff::1", "5f00::1", "100::1", "2606:4700::5efe:10.0.0.1", "4000::1"],
]
OUTSIDE = [PUBLIC, "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
OUTSIDE_BY_IPV4 = ["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2606:4700::5efe:1.1.1.1"]


@pytest.mark.parametrize("text", INSIDE)
def test_what_is_not_public(text):
    """Every special range of IPv4 and IPv6, and addresses of IPv6 that lead to one of IPv4."""
    assert not is_public(text)


@pytest.mark.parametrize("text", [*OUTSIDE, *OUTSIDE_BY_IPV4])
def test_what_is_public(text):
    """Addresses beside those ranges, and of IPv6 that lead to a public one of IPv4, as DNS64 gives them."""
    assert is_public(text)


@pytest.mark.parametrize("network", [*addresses._NOT_PUBLIC_4, *addresses._NOT_PUBLIC_6], ids=str)
def test_the_ends_of_each_range(network):
    """First and last address of it are inside."""
    assert not is_public(str(network[0]))
    assert not is_public(str(network[-1]))


def test_what_python_knows_to_be_private():
    """No address that the standard library calls private is public here, whatever its release."""
    for number in range(0, 2**32, 65_537 * 7):
        address = ipaddress.IPv4Address(number)
        assert address.is_global or not is_public(str(address))


@dataclass
class Internet:
    """Hosts and their addresses; public ones are found at a server of this machine."""

    hosts: dict = field(default_factory=dict)
    """By name, lists of addresses; of a list of lists, each lookup takes the next."""
    asked: list = field(default_factory=list)
    reached: list = field(default_factory=list)

    def look_up(self, host, port, family=0, kind=0, proto=0, flags=0):
        self.asked.append(host)
        if host not in self.hosts:
            return self.system(host, port, family, kind, proto, flags)
        found = self.hosts[host]
        if isinstance(found[0], list):
            found = found.pop(0) if len(found) > 1 else found[0]
        return [
            (socket.AF_INET6, kind, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, kind, 6, "", (address, port))
            for address in found
        ]

    def connect(self, where, timeout, options):
        self.reached.append(where[4][0])
        if where[4][0] == PUBLIC:
            where = (*where[:4], ("127.0.0.1", where[4][1]))
        return self.system_connect(where, timeout, options)


@pytest.fixture(name="internet")
def an_internet(monkeypatch):
    """Names, and public addresses that lead here."""
    made = Internet()
    made.system, made.system_connect = socket.getaddrinfo, connections.connected
    monkeypatch.setattr(socket, "getaddrinfo", made.look_up)
    monkeypatch.setattr(connections, "connected", made.connect)
    made.hosts["public.example"] = [PUBLIC]
    return made


def read(address, *listed):
    """The whole file, as a server fetches it that lists some hosts."""
    with open_remote(address, QUICK, partial(GuardedConnections, domains=Domains(listed))) as file:
        return file.read()


def named(address, host):
    """The address of a server under another host."""
    return address.replace("127.0.0.1", host, 1)


def test_a_public_host(server, internet):
    """Is read from, by parts, each connection to the address that was looked up for it."""
    address = named(server.serve("/data", DATA), "public.example")
    assert read(address) == DATA
    assert len(server.asked) > 1
    assert set(internet.reached) == {PUBLIC}
    assert internet.asked.count("public.example") == len(internet.reached)


SPELLINGS = [
    *["127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "017700000001"],
    *["0", "0x0", "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "[::]", "localhost"],
    *["0.0.0.0", "127.0.0.2", "1.1.1.1@127.0.0.1"],  # noqa: S104 - none is bound
    *["LOCALHOST", "listed.example@127.0.0.1", "listed.example:80@127.0.0.1", "[fe80::1%25lo]"],
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_spellings_of_this_machine(server, host):
    """Are refused, and nothing is asked for there."""
    address = named(server.serve("/data", DATA), host)
    with pytest.raises(InputError, match=REFUSED):
        read(address)
    assert server.asked == []


INSIDE_BY_NAME = [
    ["127.0.0.1"],
    ["::1"],
    [PUBLIC, "127.0.0.1"],
    ["10.0.0.1", PUBLIC],
    ["fe80::1%lo"],
    ["::ffff:7f00:1"],
]


@pytest.mark.parametrize("found", INSIDE_BY_NAME, ids=str)
def test_names_that_lead_inside(server, internet, found):
    """Are refused, also where another address of the name is public; nothing is connected to."""
    internet.hosts["inside.example"] = found
    with pytest.raises(InputError, match=rf"/data is on host 'inside.example', which {REFUSED}"):
        read(named(server.serve("/data", DATA), "inside.example"))
    assert (server.asked, internet.reached) == ([], [])


def test_a_name_that_is_rebound(server, internet):
    """The address that was checked is the one connected to; the next connection is checked anew."""
    internet.hosts["rebound.example"] = [[PUBLIC], ["127.0.0.1"]]
    address = server.answer("/data", lambda a: a.give(206, DATA[:9], {"Content-Range": "bytes 0-8/99"}, length=9))
    address = named(address, "rebound.example")
    with (
        pytest.raises(InputError, match=f"'rebound.example', which {REFUSED}"),
        open_remote(address, QUICK, partial(GuardedConnections, domains=Domains())) as file,
    ):
        file.read()
    assert internet.reached == [PUBLIC]
    assert len(server.asked) == 1


def test_this_machine_by_a_public_address(server, internet, monkeypatch):
    """Is refused as well, unless it is listed."""
    monkeypatch.setattr(addresses, "_NOT_PUBLIC_4", ())
    address = server.serve("/data", DATA)
    with pytest.raises(InputError, match=REFUSED):
        read(address)
    assert server.asked == []
    assert read(address, "127.0.0.1") == DATA


@pytest.mark.parametrize("listed", ["inside.example", "INSIDE.example.", " inside.example"])
def test_a_listed_host(server, internet, listed):
    """May be inside; spelt with a dot at its end or in capitals it is the same one."""
    internet.hosts["inside.example"] = internet.hosts["inside.example."] = ["127.0.0.1"]
    address = server.serve("/data", DATA)
    assert read(named(address, "inside.example"), listed) == DATA
    assert read(named(address, "Inside.Example."), listed) == DATA


@pytest.mark.parametrize("listed", ["[::1]", "::1"])
def test_a_listed_address_of_ipv6(internet, listed):
    """With brackets, as vLLM compares it, or without."""
    Domains([listed]).check_host("::1")
    with pytest.raises(InputError):
        Domains([listed]).check_host("::2")


def test_a_listed_host_of_other_letters(internet):
    """Is compared as the DNS spells it."""
    Domains(["m\xfcnchen.example"]).check_host(host_of("http://M\xfcnchen.example/")[0])
    Domains(["xn--mnchen-3ya.example"]).check_host(host_of("http://m\xfcnchen.example/")[0])


@pytest.mark.parametrize("host", ["public.example", "sub.inside.example", "inside.example.evil", "127.0.0.1"])
def test_a_host_that_is_not_listed(server, internet, host):
    """Is refused where hosts are listed, public or not, and not even looked up."""
    address = named(server.serve("/data", DATA), host)
    says = (
        f"/data is on host '{host}', which is not among those that this server fetches from; .*--allowed-media-domains"
    )
    with pytest.raises(InputError, match=says):
        read(address, "inside.example")
    assert (server.asked, internet.asked) == ([], [])


@pytest.mark.parametrize("target", ["127.0.0.1", "localhost", "inside.example", "[::1]", "2130706433"])
def test_a_redirect_inside(server, internet, target):
    """Is refused by an error that names the host and the flag."""
    internet.hosts["inside.example"] = ["127.0.0.1"]
    inside = named(server.serve("/secret", DATA), target)
    address = named(server.answer("/data", lambda a: a.redirect(inside)), "public.example")
    with pytest.raises(InputError) as error:
        read(address)
    assert f"{address} redirects to host {target.strip('[]')!r}, which is not of the public" in str(error.value)
    assert "--allowed-media-domains" in str(error.value)
    assert [asked.path for asked in server.asked] == ["/data"]


def test_a_redirect_to_a_host_that_is_not_listed(server, internet):
    """Is refused, also where it is the second one, and public."""
    public = named(server.serve("/secret", DATA), "public.example")
    server.answer("/more", lambda a: a.redirect(public))
    address = server.answer("/data", lambda a: a.redirect("/more"))
    with pytest.raises(InputError, match=r"redirects to host 'public\.example', which is not among"):
        read(address, "127.0.0.1")
    assert [asked.path for asked in server.asked] == ["/data", "/more"]


@pytest.mark.parametrize(
    "target", ["file:///etc/hosts", "ftp://public.example/", "gopher://public.example/", "data:,x"]
)
def test_a_redirect_to_another_scheme(server, internet, target):
    """Is refused."""
    address = named(server.answer("/data", lambda a: a.redirect(target)), "public.example")
    with pytest.raises(InputError, match="redirects to an address that"):
        read(address)


def test_no_redirects(server, internet):
    """Where none are to be followed, one is refused, and its address told."""
    server.serve("/there", DATA)
    address = server.answer("/data", lambda a: a.redirect("/there?secret=1"))
    none = FetchOptions(timeout=10, retries=0, redirects=0)
    says = r"/data redirects to http://127.0.0.1:\d+/there, and redirects are not followed; give that address"
    with pytest.raises(InputError, match=says):
        open_remote(address, none, partial(GuardedConnections, domains=Domains(["127.0.0.1"])))
    assert server.of("/there") == []


def test_a_proxy_of_the_environment(server, internet):
    """Is used, wherever it is; hosts behind it are checked as far as they are known here."""
    for host in ["public.example", "unknown.invalid", "127.0.0.1", "inside.example"]:
        server.serve(f"http://{host}/data", DATA)
    server.answer("/data", lambda a: a.file(DATA))
    internet.hosts["inside.example"] = ["127.0.0.1"]
    with no_proxies(HTTP_PROXY=server.address):
        assert read("http://public.example/data") == DATA
        assert read("http://unknown.invalid/data") == DATA
        count = len(server.asked)
        for host in ["127.0.0.1", "inside.example", "2130706433", "[::1]"]:
            with pytest.raises(InputError, match=REFUSED):
                read(f"http://{host}/data")
        assert len(server.asked) == count


UNCLEAR = [
    *[
        "http://127.0.0.1\\@public.example/",
        "http://public.example\\@127.0.0.1/",
        "http://%31%32%37.0.0.1/",
        "http:///x",
    ],
    *[
        "http://public.example%00.evil/",
        "http://[::1/",
        "http://a:port/",
        "http://[v1.x]/",
        "http://\uff11\uff12\uff17.1/",
    ],
    *["http://\u2488\u24d4.example/", "http://" + "\xfc" * 64 + "/"],
]


@pytest.mark.parametrize("url", UNCLEAR)
def test_hosts_that_cannot_be_understood(url):
    """Are refused, and those that parsers understand differently; the address is not shown."""
    with pytest.raises(InputError, match=r"^the address has a host that cannot be understood; it must be https://"):
        host_of(url)


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example", "a..\xfc", "." * 5, "a" * 300])
def test_names_that_no_host_has(server, host):
    """Are errors of the input, not of Python."""
    with pytest.raises(InputError):
        read(f"http://{host}/data")


def test_a_password_is_not_shown(server):
    """In the refusal of its host."""
    with pytest.raises(InputError) as error:
        read(named(server.serve("/data", DATA), "me:secret@127.0.0.1") + "?key=secret")
    assert "secret" not in str(error.value)
