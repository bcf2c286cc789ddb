"""Time inside the plugin's entry point and hooks while an engine of a text model starts.

Every run has a fresh frontend, engine core and worker. The benchmark counts the wall clock inside the import of the
entry point, inside ``load()``, and inside each hook, without the wrapped function of vLLM. The times of the three
processes are added, because they wait for each other. Modules of vLLM that our code imports count as our time, even if
vLLM would import them a little later.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import vllm_mmout
from benchmarks.report import Figure, Row

RUNS = 10
ASKED_MS = 100.0
TIMED = Path(__file__).parent / "timed"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}


def run(runs: int = RUNS) -> list[Row]:
    """Return a row for each process and a row for all together, with medians in milliseconds."""
    compileall.compile_dir(Path(vllm_mmout.__file__).parent, quiet=1)  # as pip does when it installs
    starts = [_start() for _ in range(runs)]
    rows = []
    for process in ("frontend", "engine core", "worker"):
        parts: dict[str, list[float]] = defaultdict(list)
        for start in starts:
            for part, (wall, _) in start[process].items():
                parts[f"{part} ms"].append(1e3 * wall)
        of_parts = {part: Figure.of(values) for part, values in parts.items()}
        rows.append(Row(f"start of a text model, in the {process}", of_parts))
    walls = [1e3 * sum(wall for parts in start.values() for wall, _ in parts.values()) for start in starts]
    cpus = [1e3 * sum(cpu for parts in start.values() for _, cpu in parts.values()) for start in starts]
    figures = {"ms": Figure.of(walls, at_most=ASKED_MS), "CPU ms": Figure.of(cpus)}
    return [*rows, Row("start of a text model, all processes", figures)]


Times = dict[str, tuple[float, float]]
"""Seconds of wall clock and of CPU by the name of the timed part."""


def _start() -> dict[str, Times]:
    """Start one engine, and return the times of each of its processes."""
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name, "times"), Path(name, "llama")
        folder.mkdir()
        model.mkdir()
        (model / "config.json").write_text(json.dumps(LLAMA))
        paths = [str(TIMED), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.start_cost", str(model)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "START_COST": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, log = child.communicate()
        if child.returncode:
            raise RuntimeError(f"the engine did not start:\n{log.decode()}")
        return _by_process({int(file.name): _read(file) for file in folder.iterdir()}, child.pid)


def _read(file: Path) -> Times:
    times: Times = defaultdict(lambda: (0.0, 0.0))
    for line in file.read_text().splitlines():
        name, wall, cpu = line.split()
        times[name] = (times[name][0] + float(wall), times[name][1] + float(cpu))
    return dict(times)


def _by_process(times: dict[int, Times], frontend: int) -> dict[str, Times]:
    """Return the times by the role of the process. The worker is the process that prepares a device."""
    named = {}
    for process, parts in times.items():
        if "load()" not in parts:  # a helper process that looks up a model's class, or a process outside the engine
            continue
        name = "frontend" if process == frontend else "worker" if "worker_init_device" in parts else "engine core"
        assert name not in named, f"two processes look like the {name}: {times}"
        named[name] = parts
    assert len(named) == 3, f"found only {', '.join(named)}, not all three processes"
    return named


def _engine(model: str) -> None:
    """Start an engine, as a fresh frontend."""
    from vllm import LLM

    LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        distributed_executor_backend="mp",
    )


if __name__ == "__main__":
    _engine(sys.argv[1])
