"""Memory and speed of polygons: masks of 2048 to 16384 pixels square, saved as GeoJSON and GeoParquet.

The masks have four classes, with islands some 20 pixels wide in one connected background. At 16384 pixels, a mask has
more than a hundred thousand polygons. A fresh process writes each file, and another process samples its proportional
set size every 20 ms. Idle is the median before the start, with all modules imported and the mask open. tmpfs is added,
because segments that wait for the rest of their polygon go to a temporary file beside the result.

``POLYGON_SIZES=2048,4096`` measures only these sizes. ``SCENE_FOLDER`` sets the folder of the files, on a disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process_memory import MemorySampler, tmpfs_used
from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import disk_folder

SIZES = tuple(sorted(int(size) for size in setting("POLYGON_SIZES", "2048,4096,8192,16384").split(",")))
FORMATS = ("geojson", "parquet")
ASKED_GROWTH_MIB = 64.0
SETTLED_S = 0.5
PLOTTED = ("MiB above idle",)
_GRAIN = 20
_LEVELS = (0.7, 1.0, 1.4)


def run() -> list[Row]:
    """Return a row for each file, and a row for each format that compares the largest mask with the smallest."""
    rows = []
    with disk_folder(4 * SIZES[-1] ** 2) as name:
        folder = Path(name)
        masks = [make_mask(folder / f"mask-{size}.tif", size) for size in SIZES]
        for format_ in FORMATS:
            results = [_call(mask, folder / f"out.{format_}") for mask in masks]
            peaks = [figures["peak"] - figures["idle"] for figures in results]
            for size, figures, peak in zip(SIZES, results, peaks, strict=True):
                shown = {
                    "MiB above idle": peak,
                    "s": figures["seconds"],
                    "M corners": figures["corners"] / 1e6,
                    "M corners/s": figures["corners"] / 1e6 / figures["seconds"],
                    "polygons": figures["polygons"],
                    "file MB": figures["bytes"] / 1e6,
                }
                rows.append(Row(f"{format_} of a mask of {size}", shown))
            growth = peaks[-1] - peaks[0]
            more = Figure(growth, at_most=ASKED_GROWTH_MIB if format_ == "geojson" else None)
            rows.append(Row(f"{format_}: {SIZES[-1]} against {SIZES[0]}", {"growth MiB": more}))
    return rows


def make_mask(path: Path, size: int) -> Path:
    """Write a mask block by block, and return its path."""
    from vllm_mmout.geo import Georeference
    from vllm_mmout.geo.raster.writing import GeoTiffBlocks

    heights = np.random.default_rng(3).standard_normal((size // _GRAIN + 4,) * 2).astype(np.float32)
    blocks = GeoTiffBlocks(path.parent, bands=1, height=size, width=size, dtype=np.uint8)
    side = blocks.block
    for row in range(0, size, side):
        for col in range(0, size, side):
            pixels = _relief(heights, row, col, min(side, size - row), min(side, size - col))
            blocks.write(row // side, col // side, np.digitize(pixels, _LEVELS).astype(np.uint8)[np.newaxis])
    place = Georeference(crs="EPSG:32614", transform=(10.0, 0.0, 440280.0, 0.0, -10.0, 3159720.0))
    blocks.finish(georeference=place, nodata=255).rename(path)
    return path


def _relief(heights: Any, row: int, col: int, rows: int, cols: int) -> Any:
    """Return a block of a smooth surface through random heights (cubic B-splines), so that blocks fit each other."""
    down, across = _weights(row, rows), _weights(col, cols)
    top, left = row // _GRAIN, col // _GRAIN
    return 2.2 * down @ heights[top : top + down.shape[1], left : left + across.shape[1]] @ across.T


def _weights(first: int, pixels: int) -> Any:
    """Return the weights [pixels, heights] of the heights, from the height before the first pixel on."""
    at = (first % _GRAIN + np.arange(pixels)) / _GRAIN + 1
    apart = np.abs(at[:, np.newaxis] - np.arange(int(at[-1]) + 3))
    near = 2 / 3 - apart**2 + apart**3 / 2
    far = np.clip(2 - apart, 0, None) ** 3 / 6
    return np.where(apart < 1, near, far).astype(np.float32)


def _call(mask: Path, out: Path) -> dict[str, float]:
    """Save a mask's polygons in a fresh interpreter, and return its figures."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.polygon_memory", str(mask), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"polygons of {mask} ended with status {child.returncode}:\n{child.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(child.stdout)
    print(f"{out.name} of {mask.name}: {figures}", file=sys.stderr, flush=True)
    out.unlink()
    return figures


def measure(mask: Path, out: Path) -> dict[str, float]:
    """Save a mask's polygons, and return memory in MiB and time, and the counts of polygons and corners."""
    from vllm_mmout.geo import open_raster
    from vllm_mmout.outputs import PolygonsOutput, RasterOutput
    from vllm_mmout.outputs.stored import StoredRaster

    before = tmpfs_used()
    with open_raster(mask) as opened:
        where = opened.georeference
    warm = PolygonsOutput(RasterOutput(np.eye(9, dtype=np.uint8)[np.newaxis], georeference=where))
    warm.to_bytes(out.suffix)
    polygons = PolygonsOutput(StoredRaster(mask, nodata=255, georeference=where))
    with MemorySampler([], before) as sampler:
        sampler.begin("idle")
        time.sleep(SETTLED_S)
        sampler.begin("saving")
        began = time.monotonic()
        polygons.save(out)
        seconds = time.monotonic() - began
        figures = sampler.figures()
    counts = list(_counts(polygons))
    return {
        "idle": figures["idle"]["median"],
        "peak": figures["saving"]["sum"],
        "seconds": seconds,
        "polygons": sum(count for count, _ in counts),
        "corners": sum(corners for _, corners in counts),
        "bytes": out.stat().st_size,
    }


def _counts(polygons: Any) -> Any:
    """Yield the number of polygons that end in each traced block, and the number of its corners."""
    for block in polygons.traced().pieces:  # the file does not say the counts, so trace once more
        yield len(block.classes) - block.continues, len(block.vertices)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]))))
