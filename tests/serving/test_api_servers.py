"""``--api-server-count 2``: two processes answer for one engine, and share what one of them has stored."""

from __future__ import annotations

import signal

import httpx
import psutil
import pytest
import vllm
from asked_server import metric
from scenes_for_tests import pixels, write
from serving import served, stop

pytest.importorskip("rasterio", reason="makes the scene")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
EDITS = 24


def api_servers(server):
    """The processes that listen where a server does, below its own, and the bytes that each has written."""
    below = psutil.Process(server.pid).children(recursive=True)
    port = httpx.URL(server.url).port
    listening = [one for one in below if any(found.laddr.port == port for found in one.net_connections("tcp"))]
    return {one.pid: one.io_counters().write_chars for one in listening}


@pytest.mark.skipif(vllm.__version_tuple__ < (0, 32), reason="before 0.32 connections are not shared out evenly")
def test_two_servers_answer_as_one(tmp_path):
    """Requests reach both, a stored result comes from either, metrics are the sum, and both end with the server."""
    scene = write(tmp_path / "scene.tif", pixels(51)).read_bytes()
    with served("water-index", "--api-server-count", "2", fresh=True) as server:
        edits = f"{server.url}/v1/images/edits"
        urls = []
        for _ in range(EDITS):  # each by a connection of its own
            answer = httpx.post(edits, files={"image": scene}, data={"response_format": "url"}, timeout=60)
            assert answer.status_code == 200, answer.text
            urls += [entry["url"] for entry in answer.json()["data"]]
        before = api_servers(server)
        contents = {httpx.get(urls[0]).content for _ in range(EDITS)}
        assert len(contents) == 1
        written = {pid: now - before[pid] for pid, now in api_servers(server).items()}
        assert len(written) == 2
        assert min(written.values()) > 2 * len(contents.pop()), written
        assert {httpx.get(url).status_code for url in urls} == {200}
        assert metric(server, "mmout:decode_seconds_count") == EDITS
        assert metric(server, "mmout:decodes_pending") == 0
        assert stop(server.process, signal.SIGTERM) == 0
