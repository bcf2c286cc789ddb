"""A scene through two engines behind one frontend, each with one thread on its own core, and through one, in turns.

The model is the embedded model with two more convolutions (``bound_model``), so that the engines and not the frontend
are the bottleneck. Both results are compared with the expected result. Processor time is counted for the frontend,
which shares the cores with the engines, and for its child processes. Needs two cores. ``TWO_ENGINES_SIZE=1024`` takes a
smaller scene, ``TWO_ENGINES_ROUNDS`` fewer rounds.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bound_model import bound_folder
from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from vllm_mmout import OutputParams

SIZE = int(setting("TWO_ENGINES_SIZE", "2048"))
ROUNDS = int(setting("TWO_ENGINES_ROUNDS", "5"))
TILE = 256
ASKED_RATIO = 1.6
PLOTTED = ("tiles/s",)


@dataclass(frozen=True, slots=True)
class Turn:
    """A scene that one or two engines ran."""

    seconds: float
    share: float
    """The frontend's share of the processor time of all processes."""


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(SIZE**2 * BANDS * 2) as name:
        scene = make_scene(Path(name), SIZE, "tiled")
        turns_of_engines = asyncio.run(_measure(bound_folder(Path(name)), scene))
    seconds = [[turn.seconds for turn in turns] for turns in turns_of_engines]
    tiles = (SIZE // TILE) ** 2
    rows = [
        Row(
            f"{name}, one thread each, a scene of {tiles} tiles",
            {
                "tiles/s": Figure.of(tiles / turn.seconds for turn in turns),
                "frontend's share of processor time": Figure.of(turn.share for turn in turns),
            },
        )
        for name, turns in zip(("one engine", "two engines"), turns_of_engines, strict=True)
    ]
    return [*rows, Row("two engines to one", {"ratio": Figure.ratio(*seconds, at_least=ASKED_RATIO)})]


async def _measure(model: str, scene: Scene) -> tuple[list[Turn], list[Turn]]:
    turns_of_engines: tuple[list[Turn], list[Turn]] = ([], [])
    engines: list[Any] = []
    try:
        engines += [_engine(model, cores) for cores in ("0", "0|1")]
        for number in range(ROUNDS + 1):
            for engine, turns in zip(engines, turns_of_engines, strict=True):
                turn = await _turn(engine, scene)
                if number:  # the first round warms up and is not counted
                    turns.append(turn)
    finally:
        for engine in engines:
            engine.shutdown()
    return turns_of_engines


def _engine(model: str, cores: str) -> Any:
    """Return a frontend with one engine for each of the "|"-separated lists of cores."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores  # read in the processes of the engines
    arguments = AsyncEngineArgs(
        model=model,
        gpu_memory_utilization=0.3,
        distributed_executor_backend="uni",
        data_parallel_size=len(cores.split("|")),
    )
    return AsyncLLM.from_engine_args(arguments)


async def _turn(engine: Any, scene: Scene) -> Turn:
    out = scene.path.with_suffix(".out.tif")
    before, began = _processor_times(), time.perf_counter()
    async for _ in engine.generate(str(scene.path), OutputParams(tile=TILE, path=str(out))):
        pass
    seconds = time.perf_counter() - began
    own, others = (now - earlier for now, earlier in zip(_processor_times(), before, strict=True))
    scene.check(out)
    return Turn(seconds, own / (own + others))


def _processor_times() -> tuple[float, float]:
    """Return the processor time of this process and of its child processes, in seconds."""
    this = psutil.Process()
    spent = [sum(member.cpu_times()[:2]) for member in (this, *this.children(recursive=True))]
    return spent[0], sum(spent[1:])
