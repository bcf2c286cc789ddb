"""Jobs in the page: cancelled, listed, opened, deleted, and the same by curl."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

import numpy as np
import pytest
from browsing import address, coloured, current_job, fill, finished, given, legend, pixels, run_anew
from scene_clients import client, made

httpx = pytest.importorskip("httpx", reason="the server is asked what became of a job")
rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def page(same_page):
    """The same page for all tests; each gives it its input."""
    return same_page


def test_a_cancelled_job_is_gone(page, scene):
    """Cancel ends the job on the server, and the input can be run again."""
    given(page, scene)
    fill(page, tile=8)
    states = "**/v1/scenes/*"
    # The page learns nothing of the job before Cancel is clicked, so the job cannot end before, however fast it is.
    page.route(states, lambda route: None if route.request.method == "GET" else route.fallback())
    with page.expect_response(lambda answer: answer.url.endswith("/v1/scenes")) as answer:
        page.click("#run")
    job = answer.value.json()["id"]
    page.click("#cancel")
    page.wait_for_selector("#run", state="visible")
    page.unroute(states)
    page.wait_for_function("id => !document.querySelector(`[data-id='${id}']`)", arg=job)
    assert httpx.get(f"{address(page)}/v1/scenes/{job}").status_code == 404
    fill(page, tile="", window="0,0,64,64")
    page.click("#run")
    finished(page)


def test_jobs_are_listed_opened_and_deleted(page, visit, page_server, scene, mask):
    """Another visitor finds the job in the list, sees its result without the input, and deletes it by two presses."""
    given(page, scene)
    run_anew(page)
    job = current_job(page)
    other = visit(page_server)
    item = f"#jobs li[data-id='{job}']"
    other.click(f"{item} .open")
    finished(other)
    np.testing.assert_array_equal(pixels(other, "overlay"), coloured(mask, legend(other)))
    assert other.is_hidden("#input")
    other.click(f"{item} .delete")
    assert httpx.get(f"{page_server.url}/v1/scenes/{job}").status_code == 200
    other.click(f"{item} .delete")
    other.wait_for_function("selector => !document.querySelector(selector)", arg=item)
    assert httpx.get(f"{page_server.url}/v1/scenes/{job}").status_code == 404
    assert other.is_hidden("#overlay")


@pytest.mark.slow
def test_more_jobs_are_fetched_when_asked_for(visit, page_server, scene):
    """The list has twenty jobs, and all of them after More, each once."""
    body = scene.read_bytes()
    with client(base_url=page_server.url) as asking:
        for _ in range(21):
            made(asking.post("/v1/scenes", files={"image": ("small.tif", body)}, data={"window": "0,0,64,64"}))
    page = visit(page_server)
    page.wait_for_selector("#more", state="visible")
    assert page.locator("#jobs li").count() == 20
    while page.is_visible("#more"):
        before = page.locator("#jobs li").count()
        page.click("#more")
        page.wait_for_function("n => document.querySelectorAll('#jobs li').length > n", arg=before)
    shown = page.eval_on_selector_all("#jobs li", "items => items.map(item => item.dataset.id)")
    listed = httpx.get(f"{page_server.url}/v1/scenes", params={"limit": 100}).json()
    assert not listed["has_more"]
    assert shown == [job["id"] for job in listed["data"]]


def in_shell(command, folder):
    """What a command prints that is run in a folder."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S607 - the page's commands are for a shell
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are curl's")
def test_the_curl_commands_do_the_same(page, scene, tmp_path, mask):
    """The commands that the page shows, run by a shell beside the file, make and fetch the same map."""
    given(page, scene)
    run_anew(page, tile=256, overlap=32)
    make, ask, fetch = page.text_content("#curl").replace("\\\n", "").splitlines()
    shown = current_job(page)
    job = json.loads(in_shell(make, scene.parent))["id"]
    assert job != shown
    deadline = time.monotonic() + 60
    while json.loads(in_shell(ask.replace(shown, job), tmp_path))["status"] != "completed":
        assert time.monotonic() < deadline, "the job did not end"
        time.sleep(0.2)
    in_shell(fetch.replace(shown, job), tmp_path)
    with rasterio.open(tmp_path / "scene-segmentation.tif") as file:
        np.testing.assert_array_equal(file.read(1), mask)
