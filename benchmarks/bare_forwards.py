"""Plain PyTorch on the tiles of a scene, for comparison: ``python -m benchmarks.bare_forwards FOLDER TILES CPUS...``.

Prints JSON: batch size -> seconds a tile, for batches of 1, 2, 4 and 8. TerraTorch builds the network of the folder, in
bfloat16; its threads are bound to the CPUs given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

BATCHES = (1, 2, 4, 8)


def main() -> None:
    """Measure."""
    folder, tiles, *cpus = sys.argv[1:]
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
    found = {}
    with torch.inference_mode():
        for batch in BATCHES:
            given = {
                "pixel_values": torch.randn(batch, *shape, dtype=torch.bfloat16),
                "location_coords": place.expand(1, batch, 2),
            }
            network(**given)
            started = time.perf_counter()
            rounds = max(1, int(tiles) // batch)
            for _ in range(rounds):
                network(**given)
            found[batch] = (time.perf_counter() - started) / (rounds * batch)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
