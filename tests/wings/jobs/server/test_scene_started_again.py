"""Jobs of servers that ended, whose input is an address: another server of the folder starts them again."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import psutil
import pytest
from http_server import running
from processes import PYTHONS_OWN
from scene_clients import UNFINISHED, ask, client, long_scene, made, raster, wait_for
from scene_servers import rows
from serving import served

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine
TILES = 63 * 63


@pytest.fixture
def serve(tmp_path):
    """Starts servers of one folder of results, which may read files of this machine."""
    (tmp_path / "local").mkdir()
    flags = {
        "--mmout-results-dir": tmp_path / "results",
        "--allowed-media-domains": "127.0.0.1",
        "--allowed-local-media-path": tmp_path / "local",
    }
    texts = [str(text) for flag in flags.items() for text in flag]
    return lambda: served("water-index", *texts)


def kill_engine(server):
    """End the engine's processes as the system does when memory is short; vLLM's server then ends itself."""
    for process in psutil.Process(server.pid).children(recursive=True):
        if PYTHONS_OWN not in " ".join(process.cmdline()):
            process.kill()
    server.process.wait(120)


def under_way(server, job_id):
    """Wait until some tiles of a job are done."""
    job = wait_for(lambda: _running(server, job_id), "the job was not started")
    assert job["status"] == "in_progress"


def _running(server, job_id):
    job = made(ask(server, "GET", f"/v1/scenes/{job_id}"))
    assert job["status"] in UNFINISHED, job["error"]
    return job if job["tiles"] and job["tiles"]["done"] else None


def kill(server):
    """End a server as a whole."""
    server.kill()


@pytest.mark.parametrize("ends", [(kill,), pytest.param((kill_engine, kill), marks=pytest.mark.slow)])
def test_a_job_survives_its_servers(tmp_path, serve, ends):
    """Servers are killed, or their engine; the next one gives what one server gives, by the same id.

    One job that reads a file of the machine waits meanwhile; that of an upload has failed.
    """
    content, expected = long_scene(tmp_path / "local" / "long.tif", 1000)
    results = tmp_path / "results"
    options = {"tile": 16, "output_format": "tiff"}
    with running() as source, ExitStack() as used:
        server = used.enter_context(serve())
        address = source.serve("/long.tif", content)
        one, other = (
            made(ask(server, "POST", "/v1/scenes", json={**options, "image": image, **more}))["id"]
            for image, more in ((address, {}), ((tmp_path / "local" / "long.tif").as_uri(), {"tile": 512}))
        )
        lost = made(ask(server, "POST", "/v1/scenes", files={"image": content}, data=options))["id"]
        for end in ends:
            under_way(server, one)
            end(server)
            server = used.enter_context(serve())
        with client(base_url=server.url) as asking:
            for job_id, tiles in ((one, TILES), (other, 4)):
                job = wait_for(lambda job_id=job_id: _completed(asking, job_id), "the job did not end")
                assert (job["tiles"]["done"], job["error"]) == (tiles, None)
                np.testing.assert_array_equal(raster(asking.get(f"/v1/scenes/{job_id}/content").content), expected)
            failed = made(asking.get(f"/v1/scenes/{lost}"))
        assert failed["status"] == "failed"
    assert {one, other, lost} == set(rows(results / "scenes.sqlite"))


def _completed(asking, job_id):
    job = made(asking.get(f"/v1/scenes/{job_id}"))
    assert job["status"] != "failed", job["error"]
    return job if job["status"] == "completed" else None
