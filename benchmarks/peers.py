"""TerraTorch's IO Processor plugin on vLLM's own server, and ours, one after the other: ``make bench-peers``.

Prithvi tiny with random weights, bfloat16, and a scene of 4096 x 4096 pixels in six bands; all through
``POST /pooling``. Of each server: how long the scene takes, in turns with nothing but the network's forwards in a
process of their own, with nothing else running; how long ``/health``, polled every five milliseconds, takes while
further scenes are answered; how the API server's process grows then; how many bytes come from the engine; sixteen
requests of 512 x 512 pixels beside the scene; and how long the engine works on when the client of a scene goes away.

``PEERS_SIZE=2048`` takes a smaller scene, ``PEERS_ROUNDS=1`` fewer rounds, ``PEERS_SEQS=8`` steps of eight tiles
instead of four.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.bare_forwards import BATCHES, BareForwards
from benchmarks.health_poller import HealthPoller
from benchmarks.report import Row, percentile
from benchmarks.served import HOST, served
from benchmarks.serving_health import Memory

SIZE = int(os.environ.get("PEERS_SIZE", "4096"))
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "3"))
SEQS = int(os.environ.get("PEERS_SEQS", "4"))
TILE = 512
SMALL_REQUESTS = 16
TIMEOUT_S = 1200.0
MIB = 1 << 20
ASKED_P99_MS, ASKED_WORST_MS, ASKED_GROWTH_MIB, ASKED_BYTES, ASKED_WALL = 25.0, 100.0, 150.0, 0.25, 1.05
EXAMPLES = Path(__file__).parents[1] / "examples" / "terratorch"


@dataclass(frozen=True, slots=True)
class Files:
    """What both servers get."""

    folder: Path
    model: Path
    scene: Path
    small: Path


@dataclass(slots=True)
class Peer:
    """A server that runs."""

    name: str
    port: int
    process: int
    count: Path
    model: Path

    @property
    def received(self) -> int:
        """Bytes from the engine so far."""
        return int.from_bytes(self.count.read_bytes(), "little")

    @property
    def worker(self) -> psutil.Process:
        """The process that runs the network."""
        children = psutil.Process(self.process).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)

    def body(self, file: Path) -> dict[str, Any]:
        """The JSON of a request."""
        data = {"data": str(file), "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json"}
        return {"model": str(self.model), "data": data, "softmax": False}

    def post(self, file: Path) -> float:
        """Have a file answered; gives the seconds until the last byte."""
        started = time.perf_counter()
        answer = httpx.post(
            f"http://{HOST}:{self.port}/pooling", json=self.body(file), timeout=TIMEOUT_S, trust_env=False
        )
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{self.name}: {answer.status_code}: {answer.text[:500]}")
        if not answer.json()["data"]["data"]:
            raise RuntimeError(f"{self.name}: the answer is empty")
        return time.perf_counter() - started

    def leave(self, file: Path, after_s: float) -> None:
        """Send a request, and close the connection in the middle of it."""
        body = json.dumps(self.body(file)).encode()
        fields = ("POST /pooling HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}")
        head = "\r\n".join((*fields, "", ""))
        with socket.create_connection((HOST, self.port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(after_s)

    def until_idle(self) -> float:
        """Seconds until the network's process computes no more."""
        started, worker, quiet = time.perf_counter(), self.worker, 0
        while quiet < 10:
            quiet = quiet + 1 if worker.cpu_percent(0.05) < 10 else 0
            if time.perf_counter() - started > TIMEOUT_S:
                raise RuntimeError(f"{self.name}: the engine does not come to rest")
        return time.perf_counter() - started - 10 * 0.05


def run() -> list[Row]:
    """Measure both."""
    with tempfile.TemporaryDirectory(prefix="mmout-peers-") as name:
        files = _files(Path(name))
        figures, turns = {}, {}
        cpus: list[int] = []
        for peer in ("stock", "ours"):
            with _running(peer, files) as server:
                server.post(files.small)  # the first forward chooses kernels
                cpus = server.worker.cpu_affinity()
                with BareForwards(files.model, cpus) as bare:
                    turns[peer] = [_turn(server, bare, files) for _ in range(ROUNDS)]
                figures[peer] = _figures(server, files)
    return [_wall_row(turns, len(cpus)), *_rows(figures["stock"], figures["ours"])]


def _files(folder: Path) -> Files:
    files = Files(folder, folder / "prithvi-tiny", folder / "scene.tif", folder / "small.tif")
    for path, size in ((files.scene, SIZE), (files.small, TILE)):
        _script("make_scene.py", str(path), str(size))
    _script("make_model.py", str(files.model), "--tile", str(TILE), "--centre", str(files.small))
    return files


def _script(name: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / name), *arguments], check=True, stdin=subprocess.DEVNULL
    )


@contextmanager
def _running(peer: str, files: Files) -> Iterator[Peer]:
    count = files.folder / f"{peer}.count"
    flags = ["--dtype", "bfloat16", "--max-num-seqs", str(SEQS)]
    plugins = {}
    if peer == "stock":
        flags += ["--model-impl", "terratorch", "--skip-tokenizer-init", "--enforce-eager", "--enable-mm-embeds"]
        flags += ["--io-processor-plugin", "terratorch_segmentation", "--model", str(files.model)]
        plugins = {"VLLM_PLUGINS": "terratorch_segmentation"}  # nothing of ours
    else:
        flags = [
            str(files.model),
            *flags,
            "--io-processor-plugin",
            "mmout",
            "--allowed-local-media-path",
            str(files.folder),
        ]
    environment = {**plugins, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    command = ("-m", "benchmarks.peer_server", peer, str(count), *flags)
    with served(files.folder / f"{peer}.log", command, environment) as (port, process):
        yield Peer(peer, port, process, count, files.model)


@dataclass(frozen=True, slots=True)
class Turn:
    """A scene by a server, and the bare forwards of as many tiles before it and after it."""

    scene_s: float
    bare_s: dict[int, float]
    """By batch size."""


def _turn(peer: Peer, bare: BareForwards, files: Files) -> Turn:
    tiles = (SIZE // TILE) ** 2
    before = bare.round(tiles // 4)
    scene = peer.post(files.scene)
    after = bare.round(tiles // 4)
    return Turn(scene, {batch: (before[batch] + after[batch]) / 2 * tiles for batch in BATCHES})


def _figures(peer: Peer, files: Files) -> dict[str, float]:
    """What one server does."""
    seconds, received = [], []
    with HealthPoller(HOST, peer.port) as poller, Memory(peer.process) as memory:
        poller.begin("warm")
        time.sleep(1)
        for number in range(ROUNDS):
            memory.begin()
            before = peer.received
            poller.begin(f"scene {number}")
            seconds.append(peer.post(files.scene))
            poller.begin("between")
            received.append(peer.received - before)
            time.sleep(1)
        poller.begin("beside")
        with ThreadPoolExecutor(SMALL_REQUESTS + 1) as pool:
            scene = pool.submit(peer.post, files.scene)
            time.sleep(min(2.0, seconds[0] / 4))
            small = list(pool.map(peer.post, [files.small] * SMALL_REQUESTS))
            beside = scene.result()
        poller.begin("end")
        latencies = poller.latencies()
    peer.leave(files.scene, min(5.0, seconds[0] / 4))
    left = peer.until_idle()
    polls = [latency for number in range(ROUNDS) for latency in latencies[f"scene {number}"]]
    return {
        "scene_polled_s": percentile(seconds, 50),
        "health_p99_ms": percentile(polls, 99),
        "health_worst_ms": max(polls),
        "growth_MiB": (max(memory.peaks) - memory.idle) / MIB,
        "received_MiB": percentile(received, 50) / MIB,
        "small_median_s": percentile(small, 50),
        "small_worst_s": max(small),
        "scene_beside_small_s": beside,
        "health_beside_worst_ms": max(latencies["beside"]),
        "idle_after_leaving_s": left,
    }


def _wall_row(turns: Mapping[str, Sequence[Turn]], threads: int) -> Row:
    tiles = (SIZE // TILE) ** 2
    bare = {
        batch: percentile([turn.bare_s[batch] for of_peer in turns.values() for turn in of_peer], 50)
        for batch in BATCHES
    }
    fastest = min(bare, key=bare.__getitem__)
    figures = {}
    for peer, of_peer in turns.items():
        ratios = [turn.scene_s / turn.bare_s[fastest] for turn in of_peer]
        figures[f"{peer}_scene_s"] = percentile([turn.scene_s for turn in of_peer], 50)
        figures[f"{peer}_to_fastest_bare"] = percentile(ratios, 50)
        figures |= {f"{peer}_ratio_least": min(ratios), f"{peer}_ratio_most": max(ratios)}
    return Row(
        f"wall time, in turns with bare forwards of {tiles} tiles in {threads} thread{'s' * (threads > 1)}",
        {**figures, **{f"bare_batch_{batch}_s": seconds for batch, seconds in bare.items()}},
        f"ours <= {ASKED_WALL:g} times the fastest bare",
        figures["ours_to_fastest_bare"] <= ASKED_WALL,
    )


def _rows(stock: dict[str, float], ours: dict[str, float]) -> list[Row]:
    ratio = ours["received_MiB"] / stock["received_MiB"]
    health = ours["health_p99_ms"] <= ASKED_P99_MS and ours["health_worst_ms"] <= ASKED_WORST_MS

    def both(*names: str) -> dict[str, float]:
        return {f"{peer}_{name}": found[name] for name in names for peer, found in (("stock", stock), ("ours", ours))}

    return [
        Row(
            f"/health while a scene of {SIZE} is answered",
            both("health_p99_ms", "health_worst_ms"),
            f"ours p99 <= {ASKED_P99_MS:g} ms, worst <= {ASKED_WORST_MS:g} ms",
            health,
        ),
        Row(
            "growth of the API server's process",
            both("growth_MiB"),
            f"ours <= {ASKED_GROWTH_MIB:g} MiB",
            ours["growth_MiB"] <= ASKED_GROWTH_MIB,
        ),
        Row(
            "bytes from the engine to the frontend",
            {**both("received_MiB"), "ratio": ratio},
            f"ratio <= {ASKED_BYTES:g}",
            ratio <= ASKED_BYTES,
        ),
        Row(
            f"{SMALL_REQUESTS} requests of {TILE} x {TILE} beside one such scene",
            both("scene_polled_s", "small_median_s", "small_worst_s", "scene_beside_small_s", "health_beside_worst_ms"),
        ),
        Row("the engine comes to rest after a client has left", both("idle_after_leaving_s")),
    ]
