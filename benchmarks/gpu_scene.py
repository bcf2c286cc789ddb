"""Rows of `benchmarks.gpu` for a scene that is served, and for small requests beside it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.compiled import timed
from benchmarks.gpu_settings import BATCH, DEVICE, DTYPE, ROUNDS, SIDE, TRIED, Bench, Clock
from benchmarks.report import Figure, Row, percentile

MEGAPIXELS = SIDE**2 / 1e6
ASKED = {"ViT-B/16": 150.0, "ViT-L/16": 100.0}
"""Least megapixels a second that the project wants to serve."""
ASKED_P90 = 1.5
IMAGES = 10 if TRIED else 40
"""Small requests in a round, one after the other."""
STAGES = {
    "read": "reading s",
    "map": "mapping s",
    "load": "to the device s",
    "forward": "forward s",
    "reduce": "reduce s",
    "copy": "to the host s",
    "decode": "decoding s",
    "blend": "joining s",
    "write": "writing s",
    "finish": "end of the COG s",
}
"""Stages of a trace, and the names of their figures."""
ENGINE: Mapping[str, Any] = {
    "max_num_seqs": BATCH,
    "gpu_memory_utilization": 0.3,
    "distributed_executor_backend": "uni",
}


def served(bench: Bench, name: str, clock: Clock, **engine: Any) -> Iterator[Row]:
    """Yield the megapixels a second of a scene file served to a result file, and of the bare network, in turns.

    The bare network and its encoder alone run on as many tiles, which are in device memory.
    """
    import torch

    from benchmarks.gpu_model import BANDS, TILE, build

    network = build(bench.networks[name]).to(DEVICE, getattr(torch, DTYPE))
    tiles = torch.randn((BATCH, BANDS, TILE, TILE), device=DEVICE, dtype=getattr(torch, DTYPE))
    forwards = max(1, (-(-SIDE // TILE)) ** 2 // BATCH)
    bare_megapixels = forwards * BATCH * TILE**2 / 1e6

    def bare(module: Any) -> float:
        with torch.inference_mode():
            seconds, _ = timed(lambda: [module(tiles) for _ in range(forwards)])
        return bare_megapixels / seconds

    speeds: dict[str, list[float]] = {"served": [], "encoder": [], "network": [], "processor": []}
    with started(bench.model(name), **engine) as llm:
        for number in clock.rounds():
            encoder, whole = bare(network.encoder), bare(network)
            seconds, used = run_scene(llm, bench)
            if number:
                for key, value in zip(speeds, (MEGAPIXELS / seconds, encoder, whole, used), strict=True):
                    speeds[key].append(value)
    at_least = None if engine or TRIED else ASKED.get(name)
    figures = {
        "served Mpx/s": Figure.of(speeds["served"], at_least=at_least),
        "bare encoder Mpx/s": Figure.of(speeds["encoder"]),
        "ratio": Figure.ratio(speeds["served"], speeds["encoder"]),
        "bare network Mpx/s": Figure.of(speeds["network"]),
        "frontend's processors s": Figure.of(speeds["processor"]),
    }
    options = "".join(f", {option} {value}" for option, value in engine.items() if option != "additional_config")
    yield Row(f"{name}, a scene of {SIDE} served{options}", figures)


def stages(bench: Bench, name: str, clock: Clock) -> Iterator[Row]:
    """Yield how many seconds each stage of a scene was at work, according to a trace. Stages overlap.

    On a GPU a traced step waits for the device after each stage, so the scene takes longer than an untraced one.
    """
    file = bench.folder / "trace.json"
    found: list[dict[str, float]] = []
    with started(bench.model(name), additional_config={"mmout": {"trace": str(file)}}) as llm:
        for number in clock.rounds(2):
            began = time.monotonic()
            seconds, used = run_scene(llm, bench)
            if number:
                found.append({"scene s": seconds, **_active(file, began), "frontend's processors s": used})
    yield Row(
        f"{name}, stages of a scene of {SIDE}, traced", {key: Figure.of(of[key] for of in found) for key in found[0]}
    )


def _active(file: Path, began: float) -> dict[str, float]:
    """Return how many seconds since ``began`` each stage was at work in any thread, and the rest of the steps."""
    spans: dict[str, set[tuple[float, float]]] = {}
    for event in json.loads(file.read_text().rstrip().rstrip(",") + "]"):
        if event["ph"] == "X" and event["ts"] >= 1e6 * began:
            spans.setdefault(event["name"], set()).add((event["ts"], event["ts"] + event["dur"]))
    active = {title: _covered_s(spans.get(stage, ())) for stage, title in STAGES.items()}
    in_steps = sum(active[STAGES[stage]] for stage in ("load", "forward", "reduce", "copy"))
    return {**active, "rest of the steps s": max(0.0, _covered_s(spans.get("step", ())) - in_steps)}


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that spans in microseconds cover. What several of them cover counts once."""
    covered = reached = 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered / 1e6


def run_scene(llm: Any, bench: Bench) -> tuple[float, float]:
    """Serve the scene once. Return its seconds, and the seconds of processors that this process, the frontend, used."""
    from vllm_mmout import OutputParams

    params = OutputParams(path=str(bench.folder / "out.tif"))
    used = time.process_time()
    started_s = time.perf_counter()
    llm.generate(bench.scene, params, use_tqdm=False)
    return time.perf_counter() - started_s, time.process_time() - used


@contextmanager
def started(model: str, **engine: Any) -> Iterator[Any]:
    """Start an engine in its own process, and yield its ``LLM``."""
    from vllm import LLM

    llm: Any = LLM(model, **{**ENGINE, **engine})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def small_requests(bench: Bench, clock: Clock) -> Iterator[Row]:
    """Yield the latency of one tile, requested again and again, idle and beside scenes."""
    rounds = asyncio.run(_latencies(bench, clock))
    idle, beside = ([1e3 * percentile(sides[side], 90) for sides in rounds] for side in (0, 1))
    figures = {
        "idle p90 ms": Figure.of(idle),
        "beside p90 ms": Figure.of(beside),
        "ratio": Figure.ratio(beside, idle, at_most=None if TRIED else ASKED_P90),
    }
    yield Row(f"{bench.first}, latency of a tile, alone and beside a scene of {SIDE}", figures)


async def _latencies(bench: Bench, clock: Clock) -> list[tuple[list[float], list[float]]]:
    """Return the seconds of each request of a round, idle and beside scenes."""
    import numpy as np
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from benchmarks.gpu_model import BANDS, TILE

    tile = np.random.default_rng(0).integers(1, 5000, (BANDS, TILE, TILE), np.uint16)
    engine: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(model=bench.model(bench.first), **ENGINE))
    found: list[tuple[list[float], list[float]]] = []
    try:
        for number in clock.rounds(min(3, ROUNDS)):
            idle = [await _seconds(engine, tile) for _ in range(IMAGES)]
            busy = asyncio.Event()
            scenes = asyncio.create_task(_scenes(engine, bench, busy))
            try:
                await busy.wait()
                beside = [await _seconds(engine, tile) for _ in range(IMAGES)]
            finally:
                scenes.cancel()
                with suppress(asyncio.CancelledError):
                    await scenes
            if number:
                found.append((idle, beside))
    finally:
        engine.shutdown()
    return found


async def _seconds(engine: Any, tile: Any) -> float:
    began = time.perf_counter()
    async for _ in engine.generate(tile):
        pass
    return time.perf_counter() - began


async def _scenes(engine: Any, bench: Bench, busy: asyncio.Event) -> None:
    """Serve the scene again and again until cancelled. Set ``busy`` when the first tiles are done, or it fails."""
    from vllm_mmout import OutputParams

    try:
        while True:
            async for _ in engine.generate(bench.scene, OutputParams(path=str(bench.folder / "beside.tif"))):
                busy.set()
    finally:
        busy.set()
