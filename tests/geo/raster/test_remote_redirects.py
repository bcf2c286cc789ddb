"""Where requests go: redirects, signatures that expire, passwords, proxies, certificates."""

from __future__ import annotations

import base64
import os
import shutil
import ssl
import subprocess

import numpy as np
import pytest
from http_server import a_running_server, a_server, no_proxies, running  # noqa: F401 - fixtures

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.connections import Connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote

QUICK = FetchOptions(timeout=10, retries=1, backoff=0.01)
DATA = np.random.default_rng(6).bytes(300_000)


@pytest.fixture(name="elsewhere")
def another_server():
    """A second server."""
    with running() as told:
        yield told


def read(address, **options):
    """The whole file."""
    with open_remote(address, QUICK, **options) as file:
        return file.read()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server, elsewhere, status):
    """To another server, and there to a path of its own; later requests go there at once."""
    elsewhere.serve("/folder/data", DATA)
    elsewhere.answer("/folder/moved", lambda a: a.redirect("data?key=1"))
    address = server.answer("/data", lambda a: a.redirect(f"{elsewhere.address}/folder/moved", status))
    assert read(address) == DATA
    assert len(server.asked) == 1
    assert [asked.path for asked in elsewhere.asked] == ["/folder/moved", "/folder/data?key=1", "/folder/data?key=1"]


def test_redirects_without_an_end(server):
    """Five are followed."""
    address = server.answer("/data", lambda a: a.redirect("/data?again=secret"))
    with pytest.raises(InputError, match=rf"{address} redirects more than 5 times, at last to {address}$"):
        read(address)
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("sent", "asked"),
    [
        ("/f\xf6\xf6.tif?q=\u4e2d".encode(), "/f%C3%B6%C3%B6.tif?q=%E4%B8%AD"),
        ("f\xf6.tif".encode(), "/f%C3%B6.tif"),
        (b"/f%C3%B6.tif", "/f%C3%B6.tif"),
        (b"/f\xf6.tif", "/f%C3%B6.tif"),  # no UTF-8: Latin-1, as headers were once
        (b"/a\xc2\x85b\xe2\x80\xa8c\xe2\x80\xae d.tif", "/a%C2%85b%E2%80%A8c%E2%80%AE%20d.tif"),  # lines, directions
    ],
)
def test_redirects_in_any_letters(server, sent, asked):
    """Servers send a path as it is called, in UTF-8; it is asked for escaped, what controls a terminal too."""
    server.serve(asked.partition("?")[0], DATA)
    address = server.answer("/data", lambda a: a.redirect(sent.decode("latin-1")))
    assert read(address) == DATA
    assert [request.path for request in server.asked] == ["/data", asked, asked]


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/data", "file:///etc/hosts", "//[/data", "http://host:port/"])
def test_redirects_to_what_is_no_address(server, target):
    """Are refused."""
    address = server.answer("/data", lambda a: a.redirect(target))
    with pytest.raises(InputError, match=rf"^{address} redirects to an address that .* must be https://host/path"):
        read(address)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_signature_that_expires(server, elsewhere, status):
    """The first address is asked once again, and gives a new one."""
    valid = []

    def sign(answer):
        valid.append(f"key={answer.number}")
        answer.redirect(f"{elsewhere.address}/data?{valid[-1]}")

    def signed(answer):
        if answer.path.endswith(valid[-1]):
            answer.file(DATA)
        else:
            answer.give(status, b"expired")

    elsewhere.answer("/data", signed)
    with open_remote(server.answer("/data", sign), QUICK) as file:
        assert file.read(10) == DATA[:10]
        valid.append("none")
        assert file.read() == DATA[10:]
        assert len(server.asked) == 2
    elsewhere.answer("/data", lambda a: a.give(status, b"expired"))
    with pytest.raises(InputError, match=f"answered {status}"):
        read(server.address + "/data")


def test_a_password_is_sent_to_its_own_server_alone(server, elsewhere):
    """As basic authentication, with what the address escapes."""
    secret = "Basic " + base64.b64encode(b"me:p@ss/word").decode()

    def private(answer):
        if answer.headers.get("Authorization") != secret:
            answer.give(401)
        elif answer.path == "/data":
            answer.redirect("/here")
        else:
            answer.redirect(elsewhere.address + "/data")

    elsewhere.serve("/data", DATA)
    server.answer("/data", private)
    address = server.answer("/here", private)
    with pytest.raises(InputError, match="401"):
        read(address)
    host = server.address.removeprefix("http://")
    assert read(f"http://me:p%40ss%2Fword@{host}/data") == DATA
    assert not any("authorization" in asked.headers for asked in elsewhere.asked)
    assert elsewhere.asked


def test_a_password_of_any_letters(server):
    """Is sent in UTF-8, as browsers and curl send it."""
    host = server.address.removeprefix("http://")
    server.serve("/data", DATA)
    assert read(f"http://m\xe9:\u4e2d@{host}/data") == DATA
    sent = server.asked[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "m\xe9:\u4e2d"


@pytest.fixture(name="certificate", scope="module")
def a_certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that nobody signed but itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    file = tmp_path_factory.mktemp("certificate") / "both.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = [openssl, "req", "-x509", *key, *names, "-days", "2", "-keyout", str(file), "-out", "-"]
    made = subprocess.run(command, check=True, capture_output=True, timeout=60)
    with file.open("ab") as both:
        both.write(made.stdout)
    return file


@pytest.fixture(name="secure")
def a_secure_server(certificate):
    """A server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with running(context) as told, no_proxies():
        told.serve("/data", DATA)
        yield told


def test_a_certificate_that_is_not_trusted(secure):
    """Is named, with the setting, and not tried again."""
    says = (
        rf"^{secure.address}/data: the server's certificate is not trusted \(self.signed certificate\); .*SSL_CERT_FILE"
    )
    with pytest.raises(InputError, match=says):
        read(secure.address + "/data")


def test_a_certificate_that_is_trusted(secure, certificate, server):
    """The file is read; a redirect to http is refused, one from http to https followed."""
    with no_proxies(SSL_CERT_FILE=str(certificate)):
        assert read(secure.address + "/data") == DATA
        assert read(server.answer("/up", lambda a: a.redirect(secure.address + "/data"))) == DATA
        address = server.serve("/data", DATA)
        secure.answer("/down", lambda a: a.redirect(address + "?secret=1"))
        with pytest.raises(InputError, match=rf"/down redirects from https to {address}, which is not followed"):
            read(secure.address + "/down")
    assert server.of("/data") == []


def test_proxies_of_the_environment(server, elsewhere):
    """HTTP_PROXY is asked, with its password; NO_PROXY names whom it is not for."""
    address = server.serve("/data", DATA)
    elsewhere.answer("/data", lambda a: a.file(DATA[::-1]))
    proxy = elsewhere.address.replace("http://", "http://me:secret@")
    with no_proxies(HTTP_PROXY=proxy):
        assert read(address) == DATA[::-1]
        with no_proxies(HTTP_PROXY=proxy, NO_PROXY="127.0.0.1"):
            assert read(address) == DATA
    assert [asked.path for asked in elsewhere.asked] == [address] * 2
    assert elsewhere.asked[0].headers["proxy-authorization"].startswith("Basic ")
    with no_proxies(HTTP_PROXY="socks9://127.0.0.1:1"), pytest.raises(InputError, match="the proxy that HTTP_PROXY"):
        read(address)


def test_whoever_opens_may_decide_where_requests_go(server):
    """An own kind of connections is asked for each request, and may refuse."""

    class Inspected(Connections):
        def request(self, url, headers):
            if "/inside" in url:
                raise InputError(f"{url} is no address for you")
            return super().request(url, headers)

    assert read(server.serve("/data", DATA), connections=Inspected) == DATA
    address = server.answer("/redirected", lambda a: a.redirect("/inside"))
    with pytest.raises(InputError, match="/inside is no address for you"):
        read(address, connections=Inspected)
    assert [asked.path for asked in server.asked][-1] == "/redirected"


def test_a_raster_of_another_process(server):
    """Connections are not shared with a process that was forked: it is told to open its own."""
    with open_remote(server.serve("/data", DATA), QUICK) as file:
        end, other = os.pipe()
        child = os.fork()
        if not child:
            try:
                file.read()
            except InputError as error:
                os.write(other, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        said = os.read(end, 1000).decode()
        os.close(end)
        os.close(other)
        assert "was opened in another process" in said
        assert file.read() == DATA
