"""The same request from 1, 8 and 64 clients at once: answers a second, and how long each takes.

The server is ``vllm-mmout serve water-index``; each client sends an image of 256 x 256 pixels, waits for its GeoTIFF,
checks it, and sends the next one, by a connection of its own. Numbers of clients take turns. ``CLIENTS_REQUESTS`` (of
all clients together in a turn) and ``CLIENTS_ROUNDS`` make shorter runs.
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
"""A place is free a moment after its answer was read, when the next request may be there already."""
LOSS = 0.95
"""Of the answers a second of fewer clients, what more of them must get at least: the rest is noise."""
TAIL = 2.0
"""How often the mean time of a client's request its slowest in a hundred may take."""
PLOTTED = ("answers/s",)


def run() -> list[Row]:
    """Measure."""
    found: dict[int, list[Sequence[float]]] = {count: [] for count in CLIENTS}
    speeds: dict[int, list[float]] = {count: [] for count in CLIENTS}
    with tempfile.TemporaryDirectory(prefix="mmout-clients-") as name:
        image = make_image(Path(name), 0, SIZE)
        with served(Path(name, "server.log"), (*EMBEDDED, *PLACES)) as (port, _):
            for number in range(ROUNDS + 1):
                for count in CLIENTS:
                    began = time.perf_counter()
                    late = asyncio.run(_all(port, image, count))
                    if number:  # the first one has what only the first one costs
                        speeds[count].append(len(late) / (time.perf_counter() - began))
                        found[count].append(late)
    return [_row(count, speeds, found[count]) for count in CLIENTS]


async def _all(port: int, image: Scene, count: int) -> list[float]:
    """Seconds of each request, of clients that all ask at once."""
    content, left = image.path.read_bytes(), iter(range(REQUESTS))
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, limits=limits) as http:
        wanted = await _ask(http, port, content)
        _check(wanted, image)

        async def client() -> list[float]:
            late = []
            for _ in left:
                began = time.perf_counter()
                answer = await _ask(http, port, content)
                late.append(time.perf_counter() - began)
                assert answer == wanted, "an answer is another one than the first"
            return late

        return [one for late in await asyncio.gather(*(client() for _ in range(count))) for one in late]


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


def _row(count: int, speeds: dict[int, list[float]], found: list[Sequence[float]]) -> Row:
    figures = {
        "answers/s": Figure.of(speeds[count]),
        "median ms": Figure.of(1e3 * statistics.median(late) for late in found),
        "p99 ms": Figure.of(1e3 * percentile(late, 99) for late in found),
    }
    if count != CLIENTS[0]:
        fewer = CLIENTS[CLIENTS.index(count) - 1]
        figures["answers/s to fewer clients"] = Figure.ratio(speeds[count], speeds[fewer], at_least=LOSS)
        tails = (percentile(late, 99) / statistics.mean(late) for late in found)
        figures["p99 to mean"] = Figure.of(tails, at_most=TAIL)
    return Row(f"{count} client{'s' * (count > 1)}, an image of {SIZE} each", figures)
