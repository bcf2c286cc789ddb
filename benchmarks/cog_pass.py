"""What a cloud-optimised GeoTIFF costs a large scene: its last pass, and its overviews and statistics.

The embedded model takes a scene with ``path=...``. The last pass (`GeoTiffBlocks.finish`: directories, then all encoded
blocks copied in order) is timed within `LLM.generate`. Each round runs the scene twice, with overviews and statistics
and without, in turn, as the two differ by less than a machine's speed does in a minute.

``COG_PASS_SIZE=4096`` takes a smaller scene than one of 8192 pixels square; ``SCENE_FOLDER`` says where it is.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.report import Row
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from vllm_mmout import OutputParams, embedded_model
from vllm_mmout.raster.writing.blocks import GeoTiffBlocks
from vllm_mmout.raster.writing.layout import Layout
from vllm_mmout.raster.writing.statistics import Statistics

SIZE = int(os.environ.get("COG_PASS_SIZE", "8192"))
OUTPUTS = ("classes", "probabilities")
"""Classes, whose overviews take the nearest, and float32, whose overviews are means."""
ROUNDS = 3
ASKED_SHARE = 0.1


def run() -> list[Row]:
    """Measure."""
    from vllm import LLM

    llm: Any = LLM(str(embedded_model("water-index")), gpu_memory_utilization=0.3, distributed_executor_backend="uni")
    try:
        with disk_folder(2 * SIZE**2 * BANDS * 2) as name:
            scene = make_scene(Path(name), SIZE, "tiled")
            _generate(llm, scene, OUTPUTS[0])  # what only the first one costs
            return [row for output in OUTPUTS for row in _measure(llm, scene, output)]
    finally:
        llm.llm_engine.engine_core.shutdown()


def _measure(llm: Any, scene: Scene, output: str) -> list[Row]:
    whole, last, plain = [], [], []
    for _ in range(ROUNDS):
        with _timed_finish() as passes:
            whole.append(_generate(llm, scene, output))
        last.append(sum(passes))
        with _without_overviews():
            plain.append(_generate(llm, scene, output))
    wall, final = statistics.median(whole), statistics.median(last)
    share = statistics.median(one / (all_ - one) for one, all_ in zip(last, whole, strict=True))
    ratio = statistics.median(one / other for one, other in zip(whole, plain, strict=True))
    name = f"{output} of a scene of {SIZE} to a path"
    figures = {"last pass ms": 1e3 * final, "of the rest": share}
    return [
        Row(f"{name}, last pass", figures, f"<= {ASKED_SHARE:g} of the rest", share <= ASKED_SHARE),
        Row(f"{name}", {"s": wall, "without overviews s": statistics.median(plain), "ratio": ratio}),
    ]


def _generate(llm: Any, scene: Scene, output: str) -> float:
    """Seconds that a scene takes; its result is compared with what it must be."""
    target = scene.path.with_suffix(".out.tif")
    params = OutputParams(path=str(target), output=output)
    started = time.perf_counter()
    llm.generate(str(scene.path), params, use_tqdm=False)
    seconds = time.perf_counter() - started
    if output == OUTPUTS[0]:
        scene.check(target)
    target.unlink()
    return seconds


@contextlib.contextmanager
def _timed_finish() -> Iterator[list[float]]:
    """Seconds of each last pass."""
    passes: list[float] = []
    finish = GeoTiffBlocks.finish

    def timed(blocks: GeoTiffBlocks, **told: Any) -> Path:
        started = time.perf_counter()
        path = finish(blocks, **told)
        passes.append(time.perf_counter() - started)
        return path

    with mock.patch.object(GeoTiffBlocks, "finish", timed):
        yield passes


@contextlib.contextmanager
def _without_overviews() -> Iterator[None]:
    """Files as they would be without overviews and statistics."""
    with (
        mock.patch.object(Layout, "levels", lambda layout: [layout]),
        mock.patch.object(Statistics, "add"),
    ):
        yield
