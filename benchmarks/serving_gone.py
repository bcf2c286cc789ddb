"""Delay until the work for a client stops, after the client disconnects in the middle of a scene of 4096 x 4096.

The scene is posted to ``vllm-mmout serve`` and cut into tiles of 128. When some tiles are done, the client closes its
socket. From then on, the server's counters are read: when the last tile became part of the result, and when the engine
had no more requests of the scene. ``GONE_ROUNDS=3`` takes fewer rounds.
"""

from __future__ import annotations

import time
from http.client import HTTPConnection
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, disk_folder, make_scene
from benchmarks.served import HOST, served

SIZE = 4096
TILE = 128
ROUNDS = int(setting("GONE_ROUNDS", "5"))
ASKED_S = 1.0
WATCHED_S = 3.0
TILES, RUNNING, WAITING = "mmout:tiles_total", "vllm:num_requests_running", "vllm:num_requests_waiting"


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
        scene = make_scene(Path(name), SIZE, "tiled")
        with served(Path(name) / "server.log") as (port, _):
            rounds = [_round(scene.path, port) for _ in range(ROUNDS)]
    last, idle, done = zip(*rounds, strict=True)
    tiles = (SIZE // TILE) ** 2
    figures = {
        "tiles done": Figure.of(done),
        "until the last tile s": Figure.of(last),
        "worst s": Figure(max(last), at_most=ASKED_S),
        "until the engine is idle s": Figure.of(idle),
        "worst idle s": Figure(max(idle), at_most=ASKED_S),
    }
    name = f"a client disconnects in the middle of {tiles} tiles"
    return [Row(name, figures, f"less than {tiles} tiles", max(done) < tiles)]


def _round(scene: Path, port: int) -> tuple[float, float, float]:
    """Return the seconds from closing the socket to the last tile and to an idle engine, and the tiles done."""
    before = _counters(port)[TILES]
    connection = _posted(scene, port)
    while _counters(port)[TILES] - before < 100:
        time.sleep(0.01)
    connection.close()
    closed = time.monotonic()
    tiles, last, idle = _counters(port)[TILES], 0.0, 0.0
    while (now := time.monotonic() - closed) < WATCHED_S:
        counters = _counters(port)
        if counters[TILES] != tiles:
            tiles, last = counters[TILES], now
        if counters[RUNNING] or counters[WAITING]:
            idle = now
    return last, idle, tiles - before


def _posted(scene: Path, port: int) -> HTTPConnection:
    """Post a scene, and return the connection without receiving anything."""
    form = {"output_format": "tiff", "tile": str(TILE)}
    request = httpx.Request("POST", f"http://{HOST}", files={"image": scene.read_bytes()}, data=form)
    connection = HTTPConnection(HOST, port)
    connection.request("POST", "/v1/images/edits", request.read(), dict(request.headers))
    return connection


def _counters(port: int) -> dict[str, float]:
    totals = dict.fromkeys((TILES, RUNNING, WAITING), 0.0)
    text = httpx.get(f"http://{HOST}:{port}/metrics", timeout=30, trust_env=False).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    return totals
