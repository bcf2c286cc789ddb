"""A scene from a bucket whose server answers each request 20 ms late, and the same scene from disk, in turns.

Both are read by ``LLM.generate``, once with the embedded model, whose forward takes next to no time, so that only
reading and writing count, and once with a model that does the work of a small network, so that the engine takes most of
the time. Each result is compared with the expected one.

``BUCKETS_SIZE=4096`` and ``BUCKETS_ROUNDS=1`` make a shorter run. ``SCENE_FOLDER`` sets where the scenes are written.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.bucket_server import BUCKET, late_bucket
from benchmarks.counted_model import HeavyWaterIndex, model_folder
from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from vllm_mmout import OutputParams, embedded_model

SIZE = int(setting("BUCKETS_SIZE", "8192"))
ROUNDS = int(setting("BUCKETS_ROUNDS", "5"))
WAIT_S = 0.02
ASKED_RATIO = 1.1
PLOTTED = ("bucket s", "disk s")


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(3 * SIZE**2 * BANDS) as name:
        folder = Path(name)
        scene, small = make_scene(folder, SIZE, "tiled"), make_scene(folder, SIZE // 2, "tiled")
        heavy = model_folder(folder, HeavyWaterIndex)
        with late_bucket(folder, WAIT_S) as environment:
            os.environ.update(environment)
            return [
                _measured(embedded_model("water-index"), "the embedded model", scene),
                _measured(str(heavy), "a model with work to do", small),
            ]


def _measured(model: str, model_name: str, scene: Scene) -> Row:
    from vllm import LLM

    llm: Any = LLM(model, gpu_memory_utilization=0.3, distributed_executor_backend="uni")
    sources = {"bucket": f"s3://{BUCKET}/{scene.path.name}", "disk": str(scene.path)}
    walls: dict[str, list[float]] = {where: [] for where in sources}
    for number in range(ROUNDS + 1):
        for where, source in sources.items():
            seconds = _seconds(llm, source, scene)
            if number:  # the first round warms up and is not counted
                walls[where].append(seconds)
    llm.llm_engine.engine_core.shutdown()
    figures = {f"{where} s": Figure.of(times) for where, times in walls.items()}
    figures["ratio"] = Figure.ratio(walls["bucket"], walls["disk"], at_most=ASKED_RATIO)
    return Row(f"a scene of {scene.size}, {model_name}", figures)


def _seconds(llm: Any, source: str, scene: Scene) -> float:
    out = scene.path.with_suffix(".out.tif")
    out.unlink(missing_ok=True)
    started = time.perf_counter()
    llm.generate(source, OutputParams(path=str(out)), use_tqdm=False)
    seconds = time.perf_counter() - started
    scene.check(out)
    return seconds
