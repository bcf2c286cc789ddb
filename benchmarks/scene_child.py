"""What the fresh processes of benchmarks/scene_memory.py do: an engine of its own, and scenes through it.

``python -m benchmarks.scene_child ROLE ARGUMENTS RESULT``: the arguments are JSON, the result is a JSON file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process_memory import MemorySampler, tmpfs_used
from benchmarks.scene_files import BANDS
from vllm_mmout import OutputParams, embedded_model

RING_STEPS = 12
"""Full steps after which vLLM's ring of messages between core and worker, in tmpfs, is as large as it gets."""
TILE = 512
SETTLED_S = 1.0
"""How long the engine is left alone before and while its idle memory is taken."""


def call(role: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """Run a role in a fresh interpreter and give its result.

    Raises:
        RuntimeError: it failed; the message is what it wrote.

    """
    result = folder / f"{role}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.scene_child", role, json.dumps(arguments), str(result)]
    child = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if child.returncode or not result.exists():
        raise RuntimeError(f"{role} {arguments} ended with status {child.returncode}:\n{child.stdout[-8000:]}")
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


def memory(*, scene: str, image: str, out: str, overlap: int, segments: int) -> dict[str, Any]:
    """Memory of one scene in a process that has seen no other: idle, after some full steps, and while the scene runs.

    Also how often each segment of the file was decoded, taken from the file that was read when it is closed.
    """
    before = tmpfs_used()
    counts = note_decodes(scene)
    llm = _engine(embedded_model("water-index"))
    tiles = RING_STEPS * llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    llm.generate(image, use_tqdm=False)
    llm.generate(np.zeros((BANDS, TILE, TILE * tiles), np.uint16), use_tqdm=False).clear()
    time.sleep(SETTLED_S)
    with MemorySampler(_engine_processes(), before) as sampler:
        sampler.begin("idle")
        time.sleep(SETTLED_S)
        sampler.begin("scene")
        began = time.monotonic()
        (result,) = llm.generate(scene, OutputParams(path=out, overlap=overlap), use_tqdm=False)
        seconds = time.monotonic() - began
        sampler.begin("after")
        time.sleep(SETTLED_S)
        figures = sampler.figures()
    assert result.outputs.path == out
    llm.llm_engine.engine_core.shutdown()
    assert counts, "the scene's file was not opened, or not closed"
    decodes = np.sum(counts, axis=0)
    assert len(decodes) == segments, f"{len(decodes)} segments are counted, the file has {segments}"
    assert decodes.min() > 0, f"{(decodes == 0).sum()} segments were never decoded, or the count is wrong"
    return {**figures, "wall": seconds, "decoded most": int(decodes.max()), "decoded mean": float(decodes.mean())}


def speed(*, scenes: list[str], repeats: list[int], image: str, out: str, rounds: int, model: str) -> dict[str, Any]:
    """Seconds and batches of scenes in one engine: in each round all of them in turn, each as often as it says."""
    from benchmarks.counted_model import (
        VARIABLE,
        CountedWaterIndex,
        batches_between,
        model_folder,
        while_many_remain,
    )

    os.environ[VARIABLE] = str(Path(model) / "batches")
    llm = _engine(str(model_folder(Path(model), CountedWaterIndex)))
    most = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    llm.generate(image, use_tqdm=False)
    llm.generate(scenes[0], OutputParams(path=out), use_tqdm=False)  # what only the first scene costs
    seconds: list[list[float]] = [[] for _ in scenes]
    batches: list[list[int]] = [[] for _ in scenes]
    for _ in range(rounds):
        for place, (scene, repeat) in enumerate(zip(scenes, repeats, strict=True)):
            wall = 0.0
            for _ in range(repeat):
                began = time.monotonic()
                llm.generate(scene, OutputParams(path=out), use_tqdm=False)
                ended = time.monotonic()
                wall += ended - began
                batches[place] += while_many_remain(batches_between(began, ended), most)
            seconds[place].append(wall / repeat)
    llm.llm_engine.engine_core.shutdown()
    return {"seconds": seconds, "batches": batches, "max_num_seqs": most}


def traced(*, scene: str, out: str, tile: int, trace: str) -> dict[str, Any]:
    """A scene in small tiles through an engine that is traced."""
    llm = _engine(embedded_model("water-index"), additional_config={"mmout": {"trace": trace}})
    llm.generate(scene, OutputParams(path=out, tile=tile), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return {}


def note_decodes(scene: str) -> list[Any]:
    """Give a list that gets the reader's counts whenever this process closes the scene's file."""
    from vllm_mmout.geo.raster.opened import OpenRaster

    counts: list[Any] = []
    close = OpenRaster.close

    def noting(raster: OpenRaster) -> None:
        if raster.name == scene and not raster.closed:
            counts.append(np.array(raster.decoded))
        close(raster)

    OpenRaster.close = noting
    return counts


def _engine(model: str, **arguments: Any) -> Any:
    from vllm import LLM

    return LLM(str(model), gpu_memory_utilization=0.3, distributed_executor_backend="uni", **arguments)


def _engine_processes() -> list[int]:
    """Processes of the engine that this one has started, workers aside, which are below them."""
    found = [child.pid for child in multiprocessing.active_children() if child.name.startswith("EngineCore")]
    assert found, "no engine runs in a process of its own"
    return [process for process in found if process is not None]


ROLES = {"memory": memory, "speed": speed, "traced": traced}

if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(ROLES[sys.argv[1]](**json.loads(sys.argv[2]))))
