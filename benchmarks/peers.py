"""TerraTorch's IO Processor plugin on vLLM's own server, and ours, one after the other: ``make bench-peers``.

Both run Prithvi tiny with random weights in bfloat16 on a scene of 4096 x 4096 pixels in six bands, through ``POST
/pooling``. For each server, these are measured:

- the time of the scene with nothing else running, in turns with the bare forwards of the network in another process;
- the latency of ``/health``, polled every five milliseconds while more scenes are answered, the growth of the API
  server's process meanwhile, and the bytes that come from the engine;
- sixteen requests of 512 x 512 pixels beside the scene;
- how long the engine works on after the client of a scene disconnects.

``PEERS_SIZE=2048`` takes a smaller scene, ``PEERS_ROUNDS=1`` fewer rounds, and ``PEERS_SEQS=8`` steps of eight tiles
instead of four.
"""

from __future__ import annotations

import json
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
from benchmarks.report import Figure, Row, percentile, setting
from benchmarks.served import HOST, served
from benchmarks.serving_health import Memory

SIZE = int(setting("PEERS_SIZE", "4096"))
ROUNDS = int(setting("PEERS_ROUNDS", "3"))
SEQS = int(setting("PEERS_SEQS", "4"))
TILE = 512
SMALL_REQUESTS = 16
TIMEOUT_S = 1200.0
MIB = 1 << 20
ASKED_P99_MS, ASKED_WORST_MS, ASKED_GROWTH_MIB, ASKED_BYTES, ASKED_WALL = 25.0, 100.0, 150.0, 0.25, 1.05
PLOTTED = ("p99 ms",)
PACKAGES = ("terratorch",)
EXAMPLES = Path(__file__).parents[1] / "examples" / "terratorch"


@dataclass(frozen=True, slots=True)
class Files:
    """Files that both servers get."""

    folder: Path
    model: Path
    scene: Path
    small: Path


@dataclass(slots=True)
class Peer:
    """A running server."""

    name: str
    port: int
    process: int
    count: Path
    model: Path

    @property
    def received(self) -> int:
        """The number of bytes that have come from the engine so far."""
        return int.from_bytes(self.count.read_bytes(), "little")

    @property
    def worker(self) -> psutil.Process:
        """The process that runs the network, which is the child with the most memory."""
        children = psutil.Process(self.process).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)

    def body(self, file: Path) -> dict[str, Any]:
        """Return the JSON body of a request for a file."""
        data = {"data": str(file), "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json"}
        return {"model": str(self.model), "data": data, "softmax": False}

    def post(self, file: Path) -> float:
        """Send a request for a file, and return the seconds until the last byte of the answer."""
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
        """Send a request, and close the connection after ``after_s`` seconds, in the middle of it."""
        body = json.dumps(self.body(file)).encode()
        fields = ("POST /pooling HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}")
        head = "\r\n".join((*fields, "", ""))
        with socket.create_connection((HOST, self.port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(after_s)

    def until_idle(self) -> float:
        """Return the seconds until the network's process stops computing."""
        started, worker, quiet = time.perf_counter(), self.worker, 0
        while quiet < 10:
            quiet = quiet + 1 if worker.cpu_percent(0.05) < 10 else 0
            if time.perf_counter() - started > TIMEOUT_S:
                raise RuntimeError(f"{self.name}: the engine does not become idle")
        return time.perf_counter() - started - 10 * 0.05


def run() -> list[Row]:
    """Run the benchmark at both servers and return its rows."""
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
    return [*_wall_rows(turns, len(cpus)), *_rows(figures)]


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
        plugins = {"VLLM_PLUGINS": "terratorch_segmentation"}  # without our plugin
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
    """The seconds of a scene, and of bare forwards before and after it."""

    scene_s: float
    bare_s: dict[int, float]
    """Seconds of bare forwards of as many tiles as the scene has, by batch size."""


def _turn(peer: Peer, bare: BareForwards, files: Files) -> Turn:
    tiles = (SIZE // TILE) ** 2
    before = bare.round(tiles // 4)
    scene = peer.post(files.scene)
    after = bare.round(tiles // 4)
    return Turn(scene, {batch: (before[batch] + after[batch]) / 2 * tiles for batch in BATCHES})


def _figures(peer: Peer, files: Files) -> dict[str, float]:
    """Return the figures of a server while scenes and small requests run, and after a client has disconnected."""
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
    idle_s = peer.until_idle()
    polls = [latency for number in range(ROUNDS) for latency in latencies[f"scene {number}"]]
    return {
        "polled scene s": percentile(seconds, 50),
        "p99 ms": percentile(polls, 99),
        "worst ms": max(polls),
        "growth MiB": (max(memory.peaks) - memory.idle) / MIB,
        "from the engine MiB": percentile(received, 50) / MIB,
        "small median s": percentile(small, 50),
        "small worst s": max(small),
        "scene s": beside,
        "/health worst ms": max(latencies["beside"]),
        "idle after s": idle_s,
    }


def _wall_rows(turns: Mapping[str, Sequence[Turn]], threads: int) -> list[Row]:
    tiles = (SIZE // TILE) ** 2
    bare = {batch: Figure.of(turn.bare_s[batch] for of_peer in turns.values() for turn in of_peer) for batch in BATCHES}
    fastest = min(bare, key=lambda batch: bare[batch].median)
    rows = []
    for peer, of_peer in turns.items():
        scenes, bares = [turn.scene_s for turn in of_peer], [turn.bare_s[fastest] for turn in of_peer]
        ratio = Figure.ratio(scenes, bares, at_most=ASKED_WALL if peer == "ours" else None)
        rows.append(Row(f"{peer}: a scene of {SIZE}", {"s": Figure.of(scenes), "ratio to bare forwards": ratio}))
    name = f"bare forwards of {tiles} tiles in {threads} thread{'s' * (threads > 1)}"
    return [*rows, Row(name, {f"batch of {batch} s": figure for batch, figure in bare.items()})]


def _rows(figures: Mapping[str, Mapping[str, float]]) -> list[Row]:
    targets = {"p99 ms": ASKED_P99_MS, "worst ms": ASKED_WORST_MS, "growth MiB": ASKED_GROWTH_MIB}

    def both(measurement: str, *names: str) -> list[Row]:
        return [
            Row(
                f"{peer}: {measurement}",
                {name: Figure(values[name], at_most=targets.get(name) if peer == "ours" else None) for name in names},
            )
            for peer, values in figures.items()
        ]

    received = {peer: values["from the engine MiB"] for peer, values in figures.items()}
    ratio = Figure(received["ours"] / received["stock"], at_most=ASKED_BYTES)
    return [
        *both(f"/health while a scene of {SIZE} is answered", "p99 ms", "worst ms"),
        *both("memory growth and bytes of such a scene", "growth MiB", "from the engine MiB", "polled scene s"),
        Row("bytes from the engine, ours to stock", {"ratio": ratio}),
        *both(
            f"{SMALL_REQUESTS} requests of {TILE} x {TILE} beside such a scene",
            *("small median s", "small worst s", "scene s", "/health worst ms"),
        ),
        *both("the engine becomes idle after a client disconnects", "idle after s"),
    ]
