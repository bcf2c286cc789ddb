"""The files of the page and the headers that they come with; no browser and no engine process."""

from __future__ import annotations

import re
from argparse import Namespace
from importlib import resources

import pytest

from vllm_mmout.outputs.formats import SENT

fastapi = pytest.importorskip("fastapi", reason="the server is made of it")
testclient = pytest.importorskip("fastapi.testclient")
pytestmark = pytest.mark.engine
STATIC = resources.files("vllm_mmout.wings.jobs.page") / "static"
NAMES = sorted(entry.name for entry in STATIC.iterdir())
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@pytest.fixture(scope="module")
def app():
    from vllm_mmout.wings.jobs.page.page_files import attach

    app = fastapi.FastAPI()
    attach(app)
    return app


@pytest.fixture(scope="module")
def client(app):
    return testclient.TestClient(app)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_comes_as_it_is_with_its_type_and_policy(client, name):
    """Each file of the folder has its own bytes, the type of its ending, and may load from the server alone."""
    answer = client.get(f"/mmout/{name}")
    if name != "index.html":
        assert answer.content == (STATIC / name).read_bytes()
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].partition(";")[0] == types[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy == POLICY


def test_the_page_is_its_index(client):
    """/mmout is index.html, for HEAD without the bytes."""
    content = client.get("/mmout").content
    before, after = (STATIC / "index.html").read_bytes().split(b"<!-- formats -->")
    assert content.startswith(before)
    assert content.endswith(after)
    head = client.head("/mmout")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(content)


def test_the_page_lists_the_formats_of_results(client):
    """Each with its title and the ending of its files."""
    found = re.findall(r'<option value="(\w+)" data-title="(.+?)" data-ending="([\w.]+)">', client.get("/mmout").text)
    assert found == [(form.name, form.title, form.suffixes[0].removeprefix(".")) for form in SENT.values()]


def test_a_file_that_is_known_is_not_sent_again(client):
    """A browser asks each time, and gets 304 for what it has, and the file for anything else."""
    first = client.get("/mmout/page.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = client.get("/mmout/page.js", headers={"If-None-Match": f'"other", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get("/mmout/page.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "..%2froutes.py", "%2e%2e%2froutes.py", "__init__.py", "static"])
def test_nothing_else_is_served(client, name):
    """What is no file of the page is 404, in OpenAI's form of an error."""
    answer = client.get(f"/mmout/{name}")
    assert answer.status_code == 404
    if "%2f" not in name:  # a slash leads to no route at all
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_page_is_no_part_of_the_described_interface(app):
    """/openapi.json lists what programs use."""
    assert not any("mmout" in path for path in app.openapi()["paths"])


@pytest.mark.parametrize("name", NAMES)
def test_files_name_only_files_of_the_page(name):
    """Imports and links lead to files that are there, relative to where a proxy has put them."""
    text = (STATIC / name).read_text(encoding="utf-8")
    imported = re.findall(r'(?:from|import) "([^"]+)"', text) if name.endswith(".js") else []
    linked = re.findall(r'(?:href|src)="([^"]+)"', text) if name.endswith(".html") else []
    assert {each.removeprefix("./") for each in imported} <= set(NAMES)
    assert {each.removeprefix("mmout/") for each in linked} <= set(NAMES)
    assert all(each.startswith("./") for each in imported)
    assert all(each.startswith("mmout/") for each in linked)


@pytest.mark.parametrize("name", [each for each in NAMES if each.endswith(".html")])
def test_there_is_neither_script_nor_style_in_the_markup(name):
    """The policy would refuse it."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*src=)", text)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "http://localhost:8000/mmout"),
        ({"host": "0.0.0.0"}, "http://localhost:8000/mmout"),  # noqa: S104 - nothing listens on it
        ({"host": "::1", "port": 9000}, "http://[::1]:9000/mmout"),
        ({"host": "maps.example", "ssl_keyfile": "key", "ssl_certfile": "cert"}, "https://maps.example:8000/mmout"),
        ({"uds": "socket"}, None),
    ],
)
def test_the_log_has_the_address_of_the_page(given, address):
    """The address is one that a browser on this machine can open."""
    from vllm_mmout.wings.jobs.page.page_files import address as address_of

    defaults = {"host": None, "port": 8000, "uds": None, "ssl_keyfile": None, "ssl_certfile": None}
    assert address_of(Namespace(**(defaults | given))) == address


def test_a_server_logs_where_its_page_is(water_server):
    """One line of the log has the address."""
    (address,) = re.findall(r"the page is at (\S+)", water_server.log.read_text())
    assert address == f"{water_server.url}/mmout"
