"""Fixtures: servers, a browser, and the embedded scene with what the model must make of it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from browsing import executable, flags, visited
from scene_clients import client, listed
from scenes_for_tests import classes
from serving import served


@pytest.fixture(scope="module")
def page_server(water_server):
    """The server of the page, which has no jobs of these tests afterwards."""
    yield water_server
    with client(base_url=water_server.url) as asking:
        for job_id in listed(asking):
            asking.delete(f"/v1/scenes/{job_id}")


@pytest.fixture(scope="session")
def locked_server():
    """A server of the embedded model with a key."""
    with served("water-index", "--api-key", "open-sesame") as server:
        yield server


# Of a module: as long as the browser is there, its event loop keeps others out of this thread.
@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
    path = executable()
    if path is None:
        pytest.skip("the page is tested in Chromium, which is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags())
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens the page of a server; `browsing.visited` says what is checked of every visit."""
    with ExitStack() as visits:
        yield lambda server, **settings: visits.enter_context(visited(browser, server.url, **settings))


@pytest.fixture
def page(visit, page_server):
    """The page of `page_server`."""
    return visit(page_server)


@pytest.fixture(scope="module")
def same_page(browser, page_server):
    """The page of `page_server`, visited once for all tests of a module."""
    with visited(browser, page_server.url) as page:
        yield page


@pytest.fixture(scope="session")
def embedded(demo_scene):
    """The embedded scene, as arrays."""
    return demo_scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """The embedded scene as the file that the demo writes."""
    from vllm_mmout import embedded_scene

    return embedded_scene(tmp_path_factory.mktemp("page") / "scene.tif")


@pytest.fixture(scope="session")
def mask(embedded):
    """The class of each pixel in plain numpy, 255 beyond the swath, uint8 [height, width]."""
    return classes(embedded.array, (embedded.array != embedded.nodata).all(axis=0))[0]
