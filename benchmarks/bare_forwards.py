"""Plain PyTorch forwards on the tiles of a scene, for comparison with a server.

``python -m benchmarks.bare_forwards FOLDER CPUS...`` builds the folder's network with TerraTorch in bfloat16, binds its
threads to the given CPUs, and prints "ready". For each number of tiles that it reads from its input, it then prints a
JSON object that maps batch sizes (1, 2, 4 and 8) to seconds per tile. ``BareForwards`` runs this program beside a
server and alternates with it, because the speed of a machine changes within a minute.
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
    """A process that holds the network and computes forwards on request.

    Args:
        folder: The model folder.
        cpus: The CPUs that the threads are bound to, one thread each.

    """

    def __init__(self, folder: Path, cpus: Sequence[int]) -> None:
        command = (sys.executable, "-W", "ignore", "-m", "benchmarks.bare_forwards", str(folder), *map(str, cpus))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def round(self, tiles: int) -> dict[int, float]:
        """Compute ``tiles`` tiles in batches of each size, and return the seconds per tile by batch size."""
        assert self._process.stdin is not None
        print(tiles, file=self._process.stdin, flush=True)
        return {int(batch): seconds for batch, seconds in json.loads(self._read()).items()}

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the bare forwards has ended; its error is on stderr")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # closes its input, and the process ends


def main() -> None:
    """Build the network, then answer each line of input with seconds per tile."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what libraries print out of the answers
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
        inputs = {
            "pixel_values": torch.randn(batch, *shape, dtype=torch.bfloat16),
            "location_coords": place.expand(1, batch, 2),
        }
        started = time.perf_counter()
        for _ in range(forwards):
            network(**inputs)
        return (time.perf_counter() - started) / (forwards * batch)

    with torch.inference_mode():
        for batch in BATCHES:
            seconds(batch, 1)  # the first forward chooses kernels
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            seconds_per_tile = {batch: seconds(batch, max(1, int(line) // batch)) for batch in BATCHES}
            print(json.dumps(seconds_per_tile), file=answers, flush=True)


if __name__ == "__main__":
    main()
