"""Number of the package's modules that run code while one scene is answered, by process.

A GeoTIFF of many tiles goes through ``LLM.generate``, and through ``/v1/images/edits`` of a server. A module counts if
one of its functions is called, in any thread; an import does not count. Each way runs once before it is counted.
``MODULES_SHOWN=1`` prints the modules' names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import vllm_mmout
from benchmarks.report import Figure, Row
from benchmarks.scene_files import make_scene
from benchmarks.served import HOST, served

SIZE = 1024
TILE = 256
ASKED_SERVED, ASKED_GENERATE = 45, 35
NOTING = Path(__file__).parent / "crossed"
"""Folder of a ``sitecustomize.py`` that records the modules of each process while a file exists."""
_WAIT_S = 60.0


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled").path
        path = os.pathsep.join(filter(None, [str(NOTING), os.environ.get("PYTHONPATH")]))
        calls = folder / "served"
        calls.mkdir()
        with served(folder / "log", environment={"PYTHONPATH": path, "CROSSED": str(calls)}) as (port, process):
            _edit(scene, port)
            with _recorded(calls, process):
                _edit(scene, port)
            rows = _rows("a scene over /v1/images/edits", calls, process, ASKED_SERVED)
        calls = folder / "generate"
        calls.mkdir()
        command = [sys.executable, "-m", "benchmarks.modules_crossed", str(scene)]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "CROSSED": str(calls)}) as child:
            pass
        if child.returncode:
            raise RuntimeError(f"LLM.generate ended with {child.returncode}")
        return rows + _rows("a scene over LLM.generate", calls, child.pid, ASKED_GENERATE)


@contextmanager
def _recorded(calls: Path, process: int) -> Iterator[None]:
    """Record the modules that run inside the context, in ``process`` and every other process that can record."""
    (calls / "on").touch()
    _wait(calls / f"{process}.ready")
    time.sleep(0.2)  # the other processes check every 20 ms
    yield
    (calls / "on").unlink()
    for ready in list(calls.glob("*.ready")):
        _wait(ready.with_suffix(".json"))


def _wait(path: Path) -> None:
    ends = time.monotonic() + _WAIT_S
    while not path.exists():
        if time.monotonic() > ends:
            raise RuntimeError(f"{path.name} was not written in time")
        time.sleep(0.02)


def _rows(name: str, calls: Path, frontend: int, asked: int) -> list[Row]:
    """Return a row for the process of the caller or the server, and one for the engine's processes."""
    modules_by_process = {int(path.stem): frozenset(json.loads(path.read_text())) for path in calls.glob("*.json")}
    own = modules_by_process.pop(frontend)
    rows = [Row(name, {"modules": Figure(len(own), at_most=asked)})]
    engine = frozenset[str]().union(*modules_by_process.values())
    if engine:
        rows.append(Row(f"{name}, the engine's processes", {"modules": len(engine)}))
    if os.environ.get("MODULES_SHOWN"):
        print(name, *sorted(own), "and in the engine", *sorted(engine), sep="\n  ")
    return rows


def _edit(scene: Path, port: int) -> None:
    with scene.open("rb") as file:
        answer = httpx.post(
            f"http://{HOST}:{port}/v1/images/edits",
            files={"image": file},
            data={"tile": str(TILE), "overlap": "32", "output_format": "tiff"},
            timeout=300,
            trust_env=False,
        )
    answer.raise_for_status()


def _generate(scene: str) -> None:
    """Run the scene through ``LLM.generate``, in the process that `run` starts for it."""
    from vllm import LLM

    model = str(vllm_mmout.embedded_model("water-index"))
    llm: Any = LLM(model, gpu_memory_utilization=0.3, distributed_executor_backend="uni")
    params = vllm_mmout.OutputParams(tile=TILE, overlap=32)
    llm.generate(scene, params, use_tqdm=False)
    with _recorded(Path(os.environ["CROSSED"]), os.getpid()):
        llm.generate(scene, params, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    _generate(sys.argv[1])
