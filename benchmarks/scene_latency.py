"""Latency of forty single images at once, and of one, alone and while two large scenes go through the same engine.

The engine is real (``AsyncLLM``, multiprocess). A round requests the forty images several times without the scenes.
Then it starts the scenes, requests the images as many times while both run, and waits for the scenes to end. The same
is done with images that are requested one after the other. An image's latency is the time from its request, or from the
request of all forty, to its result. Images are read from files, like the scenes. Each result is compared with the
expected one.

``SCENE_LATENCY_SIZE=4096`` takes scenes of that size instead of 8192 pixels square. ``SCENE_FOLDER`` sets their folder.
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
"""Number of times that a round requests the images, without the scenes and with them."""
ASKED_RATIO = 2.0
PLOTTED = ("median ms",)


@dataclass(slots=True)
class Found:
    """The measurements of all rounds, in seconds."""

    alone: list[list[float]] = field(default_factory=list)
    """Seconds of each image in a burst without scenes, by round."""
    beside: list[list[float]] = field(default_factory=list)
    one_alone: list[list[float]] = field(default_factory=list)
    """Seconds of each image requested on its own, by round."""
    one_beside: list[list[float]] = field(default_factory=list)
    scenes: list[float] = field(default_factory=list)
    """Seconds from the start of both scenes to the end of the later scene, by round, with the images running too."""


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
        folder = Path(name)
        scenes = [make_scene(folder, SIZE, "tiled"), make_scene(folder, SIZE, "striped")]
        images = [make_image(folder, number) for number in range(IMAGES)]
        latencies = asyncio.run(_measure(scenes, images))
        for scene in scenes:
            scene.check(_out(scene))
    return _rows(latencies)


async def _measure(scenes: list[Scene], images: list[Scene]) -> Found:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=embedded_model("water-index"), gpu_memory_utilization=0.3, distributed_executor_backend="uni"
        )
    )
    latencies = Found()
    try:
        await _burst(engine, images)  # warms up
        for _ in range(ROUNDS):
            latencies.alone.append([late for _ in range(BURSTS) for late in await _burst(engine, images)])
            latencies.one_alone.append(await _one_by_one(engine, images))
            await _beside_scenes(engine, scenes, images, latencies)
    finally:
        engine.shutdown()
    return latencies


async def _beside_scenes(engine: Any, scenes: list[Scene], images: list[Scene], latencies: Found) -> None:
    started = time.perf_counter()
    runs = [SceneRun(engine, scene) for scene in scenes]
    try:
        await asyncio.gather(*(run.began.wait() for run in runs))
        late: list[float] = []
        for _ in range(BURSTS):
            late += await _burst(engine, images)
        one_by_one = await _one_by_one(engine, images)
        assert not any(run.task.done() for run in runs), "a scene ended before the images; take a larger one"
        latencies.beside.append(late)
        latencies.one_beside.append(one_by_one)
        await asyncio.gather(*(run.task for run in runs))
        latencies.scenes.append(time.perf_counter() - started)
    finally:
        for run in runs:
            run.task.cancel()


class SceneRun:
    """A scene that goes through the engine in its own task."""

    def __init__(self, engine: Any, scene: Scene) -> None:
        self.began = asyncio.Event()
        """An event that is set when some tiles of the scene are done."""
        self.task = asyncio.create_task(self._run(engine, scene))
        self.task.add_done_callback(lambda _: self.began.set())  # nobody may wait for a scene that failed

    async def _run(self, engine: Any, scene: Scene) -> None:
        finished = False
        async for result in engine.generate(str(scene.path), OutputParams(path=str(_out(scene)))):
            finished = result.finished
            self.began.set()
        assert finished, "the last output of a scene is not its result"


async def _one_by_one(engine: Any, images: list[Scene]) -> list[float]:
    """Return the seconds of each image, requested once the image before has its result."""
    return [late for image in images for late in await _burst(engine, [image])]


async def _burst(engine: Any, images: list[Scene]) -> list[float]:
    """Return the seconds until each image has its result, with all images requested at once."""
    started = time.perf_counter()

    async def one(image: Scene) -> tuple[float, Any]:
        (result,) = [result async for result in engine.generate(str(image.path)) if result.finished]
        return time.perf_counter() - started, result.outputs.array

    answers = await asyncio.gather(*(one(image) for image in images))
    for image, (_, array) in zip(images, answers, strict=True):
        assert np.array_equal(array[0], image.classes(0, image.size)), f"{image.path} has a wrong result"
    return [late for late, _ in answers]


def _out(scene: Scene) -> Path:
    return scene.path.with_suffix(".out.tif")


def _rows(latencies: Found) -> list[Row]:
    medians = [[statistics.median(late) for late in rounds] for rounds in (latencies.beside, latencies.alone)]
    p90s = [[percentile(late, 90) for late in rounds] for rounds in (latencies.one_beside, latencies.one_alone)]
    name = f"latency of {IMAGES} images at once"
    return [
        Row(f"{name}, alone", _figures(latencies.alone)),
        Row(f"{name}, beside two scenes of {SIZE}", _figures(latencies.beside)),
        Row("ratio of the medians of a round", {"ratio": Figure.ratio(*medians, at_most=ASKED_RATIO)}),
        Row("latency of one image, alone", _figures(latencies.one_alone)),
        Row(f"latency of one image, beside two scenes of {SIZE}", _figures(latencies.one_beside)),
        Row("ratio of the 90th percentiles of a round, one image", {"ratio": Figure.ratio(*p90s, at_most=ASKED_RATIO)}),
        Row(f"two scenes of {SIZE} at once, images included", {"Mpx/s": Figure.of(map(_speed, latencies.scenes))}),
    ]


def _speed(seconds: float) -> float:
    return 2 * SIZE**2 / 1e6 / seconds


def _figures(rounds: list[list[float]]) -> dict[str, Figure]:
    """Return the figures over all rounds, in milliseconds."""
    return {
        "median ms": Figure.of(1e3 * statistics.median(late) for late in rounds),
        "p90 ms": Figure.of(1e3 * percentile(late, 90) for late in rounds),
        "worst ms": Figure.of(1e3 * max(late) for late in rounds),
    }
