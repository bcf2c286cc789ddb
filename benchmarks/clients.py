"""The same request from 1, 8 and 64 clients at once: answers per second, and the latency of each.

The server is ``vllm-mmout serve water-index``. Each client sends an image of 256 x 256 pixels over its own connection,
waits for its GeoTIFF, checks it, and sends the next request. The numbers of clients take turns. ``CLIENTS_REQUESTS``
(requests of all clients in a turn) and ``CLIENTS_ROUNDS`` make shorter runs.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.report import Figure, Row, percentile, setting
from benchmarks.scene_files import Scene, make_image
from benchmarks.served import EMBEDDED, HOST, served

CLIENTS = (1, 8, 64)
REQUESTS = int(setting("CLIENTS_REQUESTS", "512"))
ROUNDS = int(setting("CLIENTS_ROUNDS", "5"))
SIZE = 256
TIMEOUT_S = 600.0
PLACES = ("--mmout-max-waiting", str(2 * max(CLIENTS)))
"""A limit of twice the clients: a place is freed a moment after the answer, when the next request may have arrived."""
LOSS = 0.95
"""Minimum ratio of the answers per second to the rate with fewer clients. The missing 0.05 allows for noise."""
TAIL = 2.0
"""Maximum ratio of the 99th percentile of a request's time to its mean."""
PLOTTED = ("answers/s",)


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    latencies: dict[int, list[Sequence[float]]] = {count: [] for count in CLIENTS}
    speeds: dict[int, list[float]] = {count: [] for count in CLIENTS}
    with tempfile.TemporaryDirectory(prefix="mmout-clients-") as name:
        image = make_image(Path(name), 0, SIZE)
        with served(Path(name, "server.log"), (*EMBEDDED, *PLACES)) as (port, _):
            for number in range(ROUNDS + 1):
                for count in CLIENTS:
                    began = time.perf_counter()
                    late = asyncio.run(_all(port, image, count))
                    if number:  # the first round warms up and is not counted
                        speeds[count].append(len(late) / (time.perf_counter() - began))
                        latencies[count].append(late)
    return [_row(count, speeds, latencies[count]) for count in CLIENTS]


async def _all(port: int, image: Scene, count: int) -> list[float]:
    """Return the seconds of each request of ``count`` clients that run at once."""
    content, left = image.path.read_bytes(), iter(range(REQUESTS))
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, limits=limits) as http:
        expected = await _ask(http, port, content)
        _check(expected, image)

        async def client() -> list[float]:
            late = []
            for _ in left:
                began = time.perf_counter()
                answer = await _ask(http, port, content)
                late.append(time.perf_counter() - began)
                assert answer == expected, "an answer differs from the first one"
            return late

        return [seconds for late in await asyncio.gather(*(client() for _ in range(count))) for seconds in late]


async def _ask(http: httpx.AsyncClient, port: int, content: bytes) -> bytes:
    answer = await http.post(
        f"http://{HOST}:{port}/v1/images/edits", files={"image": content}, headers={"Accept": "image/tiff"}
    )
    answer.raise_for_status()
    return answer.content


def _check(answer: bytes, image: Scene) -> None:
    path = image.path.with_suffix(".out.tif")
    path.write_bytes(answer)
    image.check(path)


def _row(count: int, speeds: dict[int, list[float]], latencies: list[Sequence[float]]) -> Row:
    figures = {
        "answers/s": Figure.of(speeds[count]),
        "median ms": Figure.of(1e3 * statistics.median(late) for late in latencies),
        "p99 ms": Figure.of(1e3 * percentile(late, 99) for late in latencies),
    }
    if count != CLIENTS[0]:
        fewer = CLIENTS[CLIENTS.index(count) - 1]
        figures["answers/s to fewer clients"] = Figure.ratio(speeds[count], speeds[fewer], at_least=LOSS)
        tails = (percentile(late, 99) / statistics.mean(late) for late in latencies)
        figures["p99 to mean"] = Figure.of(tails, at_most=TAIL)
    return Row(f"{count} client{'s' * (count > 1)}, an image of {SIZE} each", figures)
