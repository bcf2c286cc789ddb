"""Processes of benchmarks/scene_memory.py: each has its own engine and runs scenes through it.

``python -m benchmarks.scene_child ROLE ARGUMENTS RESULT`` takes JSON arguments and writes a JSON file.
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
"""Full steps after which vLLM's ring of messages between core and worker, in tmpfs, has reached its full size."""
TILE = 512
SETTLED_S = 1.0
"""Seconds that the engine is left alone before its idle memory is measured, and during the measurement."""


def call(role: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """Run a role in a fresh interpreter and return its result.

    Raises:
        RuntimeError: The role failed. The message contains its output.

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
    """Measure the memory of one scene in a process that has run no other: idle, after full steps, and with the scene.

    The result also has the number of decodes of each segment, which the reader reports when the file is closed.
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
    """Measure the seconds of scenes in one engine, and the tiles of each forward.

    Each round runs each scene ``repeats`` times in turn.
    """
    from benchmarks.counted_model import VARIABLE, CountedWaterIndex, forwards_between, model_folder

    os.environ[VARIABLE] = str(Path(model) / "forwards")
    llm = _engine(str(model_folder(Path(model), CountedWaterIndex)))
    llm.generate(image, use_tqdm=False)
    llm.generate(scenes[0], OutputParams(path=out), use_tqdm=False)  # warms up
    seconds: list[list[float]] = [[] for _ in scenes]
    forwards: list[list[int]] = [[] for _ in scenes]
    for _ in range(rounds):
        for place, (scene, repeat) in enumerate(zip(scenes, repeats, strict=True)):
            wall = 0.0
            for _ in range(repeat):
                began = time.monotonic()
                llm.generate(scene, OutputParams(path=out), use_tqdm=False)
                ended = time.monotonic()
                wall += ended - began
                forwards[place] += forwards_between(began, ended)
            seconds[place].append(wall / repeat)
    llm.llm_engine.engine_core.shutdown()
    return {"seconds": seconds, "forwards": forwards}


def traced(*, scene: str, out: str, tile: int, trace: str) -> dict[str, Any]:
    """Run a scene in small tiles through an engine that writes a trace."""
    llm = _engine(embedded_model("water-index"), additional_config={"mmout": {"trace": trace}})
    llm.generate(scene, OutputParams(path=out, tile=tile), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return {}


def note_decodes(scene: str) -> list[Any]:
    """Return a list that receives the reader's decode counts whenever this process closes the scene's file."""
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
    """Return the engine core processes of this process. Workers are their children."""
    processes = [child.pid for child in multiprocessing.active_children() if child.name.startswith("EngineCore")]
    assert processes, "no engine runs in a process of its own"
    return [process for process in processes if process is not None]


ROLES = {"memory": memory, "speed": speed, "traced": traced}

if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(ROLES[sys.argv[1]](**json.loads(sys.argv[2]))))
