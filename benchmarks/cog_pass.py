"""Cost of writing a cloud-optimised GeoTIFF block by block, without a model.

The rasters hold classes, whose overviews use the nearest pixel, and float32 values, whose overviews are means. Each is
written in its own process, which reports the time of the blocks, the time of the last pass (`GeoTiffBlocks.finish`:
for values statistics, overviews, the file in its final order; for classes, whose tiles are compressed while blocks
arrive, the header and a copy) and its peak memory.

``COG_PASS_SIZE=4096`` writes rasters of 4096 and 8192 pixels square instead of 8192 and 16384. ``SCENE_FOLDER`` sets
where they are written.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import disk_folder

SIZE = int(setting("COG_PASS_SIZE", "8192"))
KINDS = ("classes", "floats")
ROUNDS = 3
ASKED_GROWTH_MIB = 32
_SIDE = 512


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    rows = []
    with disk_folder(4 * 4 * (2 * SIZE) ** 2) as folder:
        for kind in KINDS:
            figures = {}
            for size in (SIZE, 2 * SIZE):
                rounds = [_measured(folder, kind, size) for _ in range(ROUNDS)]
                figures[size] = {name: Figure.of(one_round[name] for one_round in rounds) for name in rounds[0]}
                rows.append(Row(f"{kind} of {size} by blocks", figures[size]))
            growth = figures[2 * SIZE]["peak MiB"].median - figures[SIZE]["peak MiB"].median
            more = {"growth MiB": Figure(growth, at_most=ASKED_GROWTH_MIB)}
            rows.append(Row(f"{kind}: {2 * SIZE} against {SIZE}", more))
    return rows


def _measured(folder: str, kind: str, size: int) -> dict[str, float]:
    """Run one process and return its figures."""
    command = [sys.executable, "-m", __spec__.name, folder, kind, str(size)]
    figures: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return figures


def write(folder: Path, kind: str, size: int) -> dict[str, float]:
    """Write a raster, delete it, and return its times in seconds and the peak memory in MiB."""
    from vllm_mmout.geo import Georeference
    from vllm_mmout.geo.raster.writing import GeoTiffBlocks

    pool = [_pixels(kind, number) for number in range(16)]
    place = Georeference("EPSG:32614", (10.0, 0.0, 5e5, 0.0, -10.0, 5e6))
    metadata: dict[str, Any] = {"nodata": -9999.0}
    if kind == "classes":
        metadata = {"nodata": 255, "palette": np.arange(24, dtype=np.uint8).reshape(8, 3), "class_names": "abcdefgh"}
    processor, started = time.process_time(), time.perf_counter()
    blocks = GeoTiffBlocks(folder, bands=1, height=size, width=size, dtype=pool[0].dtype, classes=kind == "classes")
    for number, (row, col) in enumerate(np.ndindex(size // _SIDE, size // _SIDE)):
        blocks.write(row, col, pool[number % len(pool)])
    written = time.perf_counter()
    blocks.finish(georeference=place, **metadata).unlink()
    ended = time.perf_counter()
    return {
        "s": ended - started,
        "last pass s": ended - written,
        "processor s": time.process_time() - processor,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _pixels(kind: str, seed: int) -> Any:
    """Return a block [1, 512, 512] of a smooth surface with noise, as eight classes or as float32."""
    random = np.random.default_rng(seed)
    waves = np.sin(np.arange(_SIDE) / 40 + seed)
    surface = 2 * np.add.outer(waves, waves) + random.normal(scale=0.05, size=(_SIDE, _SIDE))
    if kind == "classes":
        return np.clip(surface + 4, 0, 7).astype(np.uint8)[np.newaxis]
    return surface.astype(np.float32)[np.newaxis]


if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
