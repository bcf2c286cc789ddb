"""``/health`` of ``vllm-mmout serve`` while it answers a scene of 4096 x 4096: latency, and growth of the process.

The server is started as users start it. The scene (six bands of uint16, deflate) is posted to ``/v1/images/edits`` as
the file of a form. The answer is a GeoTIFF, each pixel of which is compared with the expected result. Another process
polls ``/health`` every five milliseconds, first while the server is idle and then during each request. The resident
memory of the server's process is sampled from before the first request.

``SERVING_SIZE=2048`` takes a smaller scene, ``SERVING_ROUNDS=2`` fewer rounds. ``SCENE_FOLDER`` sets the folder.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from benchmarks.health_poller import HealthPoller
from benchmarks.report import Figure, Row, percentile, setting
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from benchmarks.served import HOST, served

SIZE = int(setting("SERVING_SIZE", "4096"))
ROUNDS = int(setting("SERVING_ROUNDS", "5"))
"""Number of rounds, at least two."""
IDLE_S = 5.0
PERIOD_S = 0.01
MIB = 1 << 20
ASKED_P99_MS = 25.0
ASKED_WORST_MS = 100.0
ASKED_GROWTH_MIB = 150.0
PLOTTED = ("p99 ms", "worst ms")


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled")
        with served(folder / "server.log") as (port, process):
            return _measure(scene, port, process)


def _measure(scene: Scene, port: int, process: int) -> list[Row]:
    seconds = []
    with HealthPoller(HOST, port) as poller, Memory(process) as memory:
        poller.begin("warm")  # the first polls open connections
        time.sleep(1)
        poller.begin("idle")
        time.sleep(IDLE_S)
        for number in range(ROUNDS):
            memory.begin()
            poller.begin(f"round {number}")
            seconds.append(_post(scene, port, scene.path.with_name("out.tif")))
            poller.begin("between")
            scene.check(scene.path.with_name("out.tif"))
            time.sleep(1)
        latencies = poller.latencies()
    rounds = [latencies[f"round {number}"] for number in range(ROUNDS)]
    growth = (max(memory.peaks) - memory.idle) / MIB
    memories = {
        "idle MiB": memory.idle / MIB,
        "growth MiB": Figure(growth, at_most=ASKED_GROWTH_MIB),
        "growth after the first request MiB": (max(memory.peaks[1:]) - memory.first) / MIB,
        "request s": Figure.of(seconds),
    }
    return [
        Row("/health while nothing happens", _figures([latencies["idle"]])),
        Row(f"/health while a scene of {SIZE} is answered", _figures(rounds, ASKED_P99_MS, ASKED_WORST_MS)),
        Row(f"the process that answers a scene of {SIZE}", memories),
    ]


def _figures(
    rounds: list[list[float]], p99_ms: float | None = None, worst_ms: float | None = None
) -> dict[str, float | Figure]:
    """Return the figures of all polls. The spread of the 99th percentile is over the rounds."""
    polls = [latency for polls_of_round in rounds for latency in polls_of_round]
    p99 = Figure.of(percentile(polls_of_round, 99) for polls_of_round in rounds)
    return {
        "polls": len(polls),
        "p50 ms": percentile(polls, 50),
        "p99 ms": Figure(percentile(polls, 99), p99.least, p99.most, len(rounds), at_most=p99_ms),
        "worst ms": Figure(max(polls), at_most=worst_ms),
    }


def _post(scene: Scene, port: int, target: Path) -> float:
    """Post a scene, write the answer to a file, and return the seconds until its last byte."""
    started = time.perf_counter()
    form = {"prompt": "water", "output_format": "tiff"}
    with scene.path.open("rb") as file, target.open("wb") as out:
        request: dict[str, Any] = {"files": {"image": ("scene.tif", file, "image/tiff")}, "data": form}
        client = httpx.Client(timeout=600, trust_env=False, headers={"Accept": "image/tiff"})
        with client, client.stream("POST", f"http://{HOST}:{port}/v1/images/edits", **request) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"{answer.status_code}: {answer.read().decode(errors='replace')}")
            for piece in answer.iter_bytes():
                out.write(piece)
    return time.perf_counter() - started


@dataclass(slots=True)
class Memory:
    """A sampler of a process's resident memory, in bytes."""

    process: int
    idle: int = 0
    """The memory before the first request, in bytes."""
    first: int = 0
    """The memory before the second request, in bytes. It includes memory that the first request left allocated."""
    peaks: list[int] = field(default_factory=list)
    """The peak of each round, in bytes."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.idle = self._now()
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()

    def begin(self) -> None:
        """Begin a round."""
        if len(self.peaks) == 1:
            self.first = self._now()
        self.peaks.append(self._now())

    def _now(self) -> int:
        return int(psutil.Process(self.process).memory_info().rss)

    def _sample(self) -> None:
        while not self._ended.wait(PERIOD_S):
            if self.peaks:
                self.peaks[-1] = max(self.peaks[-1], self._now())
