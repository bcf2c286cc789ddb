"""Gaps of the event loop while 64 outputs of 2 x 512 x 512 float32 become PNGs, in the pool and on the loop itself.

The engine is real (multiprocess). A task that wakes every millisecond records how late it is. As a control, the raw
tensors come from ``AsyncLLM.encode`` and the requesting task decodes them, as a server without a decode pool would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from benchmarks.png_processor import LogitsToPNG
from benchmarks.report import Figure, Row, percentile
from vllm_mmout import OutputParams, embedded_model

OUTPUTS = 64
SIZE = 512
TICK = 0.001
ASKED_P99_MS = 25.0
ASKED_WORST_MS = 100.0
PLOTTED = ("p99 ms",)


def run() -> list[Row]:
    """Run the benchmark and return its rows. Each round measures both ways in turn, with one engine in one process."""
    return asyncio.run(_measure())


async def _measure(rounds: int = 5) -> list[Row]:
    from vllm import PoolingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from vllm_mmout.models.inputs.engine_input import as_mm_input

    engine: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=embedded_model("water-index"),
            gpu_memory_utilization=0.3,
            distributed_executor_backend="uni",
            additional_config={"mmout": {"output_processor": "benchmarks.png_processor:LogitsToPNG"}},
        )
    )
    tiles = np.random.default_rng(1).integers(0, 10_000, (OUTPUTS, 6, SIZE, SIZE), dtype=np.uint16)
    decoder, params = LogitsToPNG(), OutputParams()

    async def in_the_pool(place: int) -> bytes:
        results = [result async for result in engine.generate(tiles[place])]
        return bytes(results[-1].outputs)

    async def on_the_loop(place: int) -> bytes:
        prompt = as_mm_input({"pixel_values": tiles[place]}, ("pixel_values",))
        pooled = engine.encode(prompt, PoolingParams(task="plugin"), f"{place}-{time.monotonic_ns()}")
        raw = [output.outputs.data async for output in pooled][-1]
        return decoder.decode(raw, params)

    gaps: dict[str, list[float]] = {"pool": [], "loop": []}
    walls: dict[str, list[float]] = {"pool": [], "loop": []}
    try:
        assert await in_the_pool(0) == await on_the_loop(0)
        for _ in range(rounds):
            for name, way in (("pool", in_the_pool), ("loop", on_the_loop)):
                late, wall = await _gaps_while(way)
                gaps[name] += late
                walls[name].append(wall)
    finally:
        engine.shutdown()
    return [_row(name, gaps[name], walls[name]) for name in gaps]


async def _gaps_while(way: Callable[[int], Awaitable[bytes]]) -> tuple[list[float], float]:
    """Return the lateness of each tick in ms, and the seconds until all outputs, requested at once, are done."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(1e3 * (time.perf_counter() - before - TICK))

    ticker = asyncio.create_task(tick())
    started = time.perf_counter()
    pictures = await asyncio.gather(*(way(place) for place in range(OUTPUTS)))
    wall = time.perf_counter() - started
    ticker.cancel()
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    return late, wall


def _row(name: str, late: list[float], walls: list[float]) -> Row:
    pool = name == "pool"
    figures = {
        "p50 ms": percentile(late, 50),
        "p99 ms": Figure(percentile(late, 99), at_most=ASKED_P99_MS if pool else None),
        "worst ms": Figure(max(late), at_most=ASKED_WORST_MS if pool else None),
        "total s": Figure.of(walls),
    }
    return Row(f"{OUTPUTS} PNGs decoded in the {name}{' (control)' * (not pool)}", figures)
