"""Plain PyTorch on the tiles of a scene, for comparison.

``python -m benchmarks.bare_forwards FOLDER CPUS...`` builds the network of the folder with TerraTorch, in bfloat16,
binds its threads to the CPUs given, and writes a line; then, for each number of tiles that it reads, a line of JSON:
batch size -> seconds a tile, for batches of 1, 2, 4 and 8. ``BareForwards`` runs it beside something else, and takes
turns with it: the speed of a machine changes within a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

BATCHES = (1, 2, 4, 8)


class BareForwards:
    """A process with the network, which computes when it is told to.

    Args:
        folder: of the model.
        cpus: to which its threads are bound, one each.

    """

    def __init__(self, folder: Path, cpus: Sequence[int]) -> None:
        command = (sys.executable, "-W", "ignore", "-m", "benchmarks.bare_forwards", str(folder), *map(str, cpus))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def round(self, tiles: int) -> dict[int, float]:
        """Have tiles computed in batches of each size; gives the seconds that one tile takes, by size."""
        assert self._process.stdin is not None
        print(tiles, file=self._process.stdin, flush=True)
        return {int(batch): seconds for batch, seconds in json.loads(self._read()).items()}

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare forwards have ended")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # closes its input, which ends it


def main() -> None:
    """Measure."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    folder, *cpus = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus})
    import torch
    from terratorch.vllm import InferenceRunner

    torch.set_num_threads(len(cpus))
    config = json.loads(Path(folder, "config.json").read_text())["pretrained_cfg"]
    network = InferenceRunner(config).eval()
    network.load_state_dict(torch.load(Path(folder, "model.pt"))["state_dict"])
    network.to(torch.bfloat16)
    shape = config["input"]["data"]["pixel_values"]["shape"]
    place = torch.tensor([[[45.0, 10.0]]], dtype=torch.bfloat16)

    def seconds(batch: int, forwards: int) -> float:
        given = {
            "pixel_values": torch.randn(batch, *shape, dtype=torch.bfloat16),
            "location_coords": place.expand(1, batch, 2),
        }
        started = time.perf_counter()
        for _ in range(forwards):
            network(**given)
        return (time.perf_counter() - started) / (forwards * batch)

    with torch.inference_mode():
        for batch in BATCHES:
            seconds(batch, 1)  # the first one chooses kernels
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            found = {batch: seconds(batch, max(1, int(line) // batch)) for batch in BATCHES}
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
