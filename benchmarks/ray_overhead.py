"""Ray's overhead a scene: a folder by one engine of a cluster, and by a loop in one process, in turns.

``.venv-terratorch/bin/python -m benchmarks ray_overhead`` runs Prithvi tiny with random weights on one thread, on
scenes of 1024 x 1024 pixels in six bands, with four tiles each and results in files. For both, seconds per scene are
counted from the end of the first batch, when the engine runs. The loop runs half of its scenes before the cluster and
half after. ``python -m benchmarks.ray_overhead MODEL SCENE OUT`` is the loop. Each line of its input is a number of
scenes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import disk_folder

ROUNDS = int(setting("RAY_ROUNDS", "3"))
SCENES = int(setting("RAY_SCENES", "24"))
SIDE, TILE, BATCH = 1024, 512, 4
ASKED = 1.05
PLOTTED = ("ratio",)
EXAMPLES = Path(__file__).parents[1] / "examples" / "terratorch"


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with disk_folder(1 << 30) as name:
        folder = Path(name)
        scene, model = folder / "scene.tif", folder / "prithvi-tiny"
        for script in (("make_scene.py", scene, SIDE), ("make_model.py", model, "--tile", TILE, "--centre", scene)):
            subprocess.run([sys.executable, "-W", "ignore", EXAMPLES / script[0], *map(str, script[1:])], check=True)
        alone, cluster = [], []
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.ray_overhead", model, scene, folder / "loop"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as loop:
            _looped(loop, 2)  # the first forward chooses kernels
            for number in range(ROUNDS):
                before = _looped(loop, SCENES // 2)
                cluster.append(_on_a_cluster(model, scene, folder / f"ray{number}"))
                alone.append((before + _looped(loop, SCENES // 2)) / 2)
            loop.communicate()
    figures = {
        "loop s": Figure.of(alone),
        "cluster s": Figure.of(cluster),
        "ratio": Figure.ratio(cluster, alone, at_most=ASKED),
    }
    return [Row(f"a scene of {SIDE}, Prithvi tiny, one thread", figures)]


def _looped(loop: subprocess.Popen[str], scenes: int) -> float:
    """Have the loop run ``scenes`` scenes, and return its seconds per scene."""
    assert loop.stdin is not None
    assert loop.stdout is not None
    print(scenes, file=loop.stdin, flush=True)
    return float(loop.stdout.readline())


def _on_a_cluster(model: Path, scene: Path, out: Path) -> float:
    """Return the seconds per scene of an engine in an actor, as in ``vllm-mmout run --ray``."""
    import ray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.wings.ray.cluster import dataset_of, row_of
    from vllm_mmout.wings.ray.manifest import Manifest
    from vllm_mmout.wings.ray.predictor import RunSettings

    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    try:
        job = RunSettings(
            str(model),
            OutputParams(),
            ("--max-num-seqs", "4"),
            "scene",
            Manifest(str(out), str(model), OutputParams()),
            "run",
        )
        rows = []
        for number in range(SCENES):
            (out.parent / f"{out.name}-{number}.tif").hardlink_to(scene)
            rows.append(row_of(f"{out}-{number}.tif", str(number)))
        for row in dataset_of(rows, job, num_cpus=1).iter_rows():
            assert '"error"' not in row["record"], row
        ended = sorted(path.stat().st_mtime for path in (out / ".vllm-mmout").glob("*.json"))
        return (ended[-1] - ended[BATCH - 1]) / (SCENES - BATCH)
    finally:
        ray.shutdown()


def main() -> None:
    """Run the loop: read numbers of scenes, run these scenes, and print the seconds per scene."""
    from vllm_mmout import OutputParams
    from vllm_mmout.commands.engine import engine

    model, scene, out = sys.argv[1:]
    with engine(model, ["--max-num-seqs", "4"]) as llm:
        number = 0
        for line in sys.stdin:
            started = time.perf_counter()
            for _ in range(int(line)):
                number += 1
                llm.generate(scene, OutputParams(path=f"{out}-{number}.tif"), use_tqdm=False)
            print((time.perf_counter() - started) / int(line), flush=True)


if __name__ == "__main__":
    main()
