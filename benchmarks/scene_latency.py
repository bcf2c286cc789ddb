"""Latency of forty single images at once, and of one, alone and while two large scenes go through the same engine.

The engine is real (``AsyncLLM``, multiprocess). A round asks for the forty images several times without the scenes,
then starts the scenes, asks for the images as often while both run, and lets the scenes end; as often images are asked
for one after the other. An image's latency is the time from the moment in which all are asked for, or it alone, to its
own result; images are read from their files like the scenes. Each result is compared with what it must be.

``SCENE_LATENCY_SIZE=4096`` takes smaller scenes than those of 8192 pixels square; ``SCENE_FOLDER`` says where they are.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figure, Row, percentile, setting
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_image, make_scene
from vllm_mmout import OutputParams, embedded_model

IMAGES = 40
SIZE = int(setting("SCENE_LATENCY_SIZE", "8192"))
ROUNDS = 3
BURSTS = 3
"""How often a round asks for the images, without the scenes and with them."""
ASKED_RATIO = 2.0
PLOTTED = ("median ms",)


@dataclass(slots=True)
class Found:
    """What all rounds found."""

    alone: list[list[float]] = field(default_factory=list)
    """Seconds of each image, by round."""
    beside: list[list[float]] = field(default_factory=list)
    one_alone: list[list[float]] = field(default_factory=list)
    """The same of images that are asked for one after the other."""
    one_beside: list[list[float]] = field(default_factory=list)
    scenes: list[float] = field(default_factory=list)
    """Seconds from the start of both scenes to the end of the later one, by round, images included."""


def run() -> list[Row]:
    """Measure."""
    with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
        folder = Path(name)
        scenes = [make_scene(folder, SIZE, "tiled"), make_scene(folder, SIZE, "striped")]
        images = [make_image(folder, number) for number in range(IMAGES)]
        found = asyncio.run(_measure(scenes, images))
        for scene in scenes:
            scene.check(_out(scene))
    return _rows(found)


async def _measure(scenes: list[Scene], images: list[Scene]) -> Found:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=embedded_model("water-index"), gpu_memory_utilization=0.3, distributed_executor_backend="uni"
        )
    )
    found = Found()
    try:
        await _burst(engine, images)  # what only the first ones cost
        for _ in range(ROUNDS):
            found.alone.append([late for _ in range(BURSTS) for late in await _burst(engine, images)])
            found.one_alone.append(await _one_by_one(engine, images))
            await _beside_scenes(engine, scenes, images, found)
    finally:
        engine.shutdown()
    return found


async def _beside_scenes(engine: Any, scenes: list[Scene], images: list[Scene], found: Found) -> None:
    started = time.perf_counter()
    runs = [SceneRun(engine, scene) for scene in scenes]
    try:
        await asyncio.gather(*(run.began.wait() for run in runs))
        late: list[float] = []
        for _ in range(BURSTS):
            late += await _burst(engine, images)
        one_by_one = await _one_by_one(engine, images)
        assert not any(run.task.done() for run in runs), "a scene ended before the images; take a larger one"
        found.beside.append(late)
        found.one_beside.append(one_by_one)
        await asyncio.gather(*(run.task for run in runs))
        found.scenes.append(time.perf_counter() - started)
    finally:
        for run in runs:
            run.task.cancel()


class SceneRun:
    """A scene that goes through the engine in a task of its own."""

    def __init__(self, engine: Any, scene: Scene) -> None:
        self.began = asyncio.Event()
        """Whether tiles of it are done."""
        self.task = asyncio.create_task(self._run(engine, scene))
        self.task.add_done_callback(lambda _: self.began.set())  # one that failed must not be waited for

    async def _run(self, engine: Any, scene: Scene) -> None:
        finished = False
        async for result in engine.generate(str(scene.path), OutputParams(path=str(_out(scene)))):
            finished = result.finished
            self.began.set()
        assert finished, "the last of what a scene gave is not its result"


async def _one_by_one(engine: Any, images: list[Scene]) -> list[float]:
    """Seconds of each of the images, asked for when the one before is there."""
    return [late for image in images for late in await _burst(engine, [image])]


async def _burst(engine: Any, images: list[Scene]) -> list[float]:
    """Seconds until each of the images is there, all asked for at once."""
    started = time.perf_counter()

    async def one(image: Scene) -> tuple[float, Any]:
        (result,) = [result async for result in engine.generate(str(image.path)) if result.finished]
        return time.perf_counter() - started, result.outputs.array

    answers = await asyncio.gather(*(one(image) for image in images))
    for image, (_, array) in zip(images, answers, strict=True):
        assert np.array_equal(array[0], image.classes(0, image.size)), f"{image.path} has another's result"
    return [late for late, _ in answers]


def _out(scene: Scene) -> Path:
    return scene.path.with_suffix(".out.tif")


def _rows(found: Found) -> list[Row]:
    medians = [[statistics.median(late) for late in rounds] for rounds in (found.beside, found.alone)]
    p90s = [[percentile(late, 90) for late in rounds] for rounds in (found.one_beside, found.one_alone)]
    name = f"latency of {IMAGES} images at once"
    return [
        Row(f"{name}, alone", _figures(found.alone)),
        Row(f"{name}, beside two scenes of {SIZE}", _figures(found.beside)),
        Row("ratio of the medians of a round", {"ratio": Figure.ratio(*medians, at_most=ASKED_RATIO)}),
        Row("latency of one image, alone", _figures(found.one_alone)),
        Row(f"latency of one image, beside two scenes of {SIZE}", _figures(found.one_beside)),
        Row("ratio of the 90th percentiles of a round, one image", {"ratio": Figure.ratio(*p90s, at_most=ASKED_RATIO)}),
        Row(f"two scenes of {SIZE} at once, images included", {"Mpx/s": Figure.of(map(_speed, found.scenes))}),
    ]


def _speed(seconds: float) -> float:
    return 2 * SIZE**2 / 1e6 / seconds


def _figures(rounds: list[list[float]]) -> dict[str, Figure]:
    """Over rounds, in milliseconds."""
    return {
        "median ms": Figure.of(1e3 * statistics.median(late) for late in rounds),
        "p90 ms": Figure.of(1e3 * percentile(late, 90) for late in rounds),
        "worst ms": Figure.of(1e3 * max(late) for late in rounds),
    }
