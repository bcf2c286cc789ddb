"""A scene read in tiles of 224 without a model, and by GDAL with two threads in rows of blocks, in turns, five codecs.

The scene has six bands and tiles of 512, by GDAL's own writer. Both sides read it whole. The main figure is processor
time, since wall time depends on what else the machine does. ``CODECS_SIZE=2048`` and ``CODECS_ROUNDS=3`` make a shorter
run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window as RasterioWindow

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, TILE, disk_folder, make_scene
from vllm_mmout.geo import TileGrid, open_raster

SIZE = int(setting("CODECS_SIZE", "4096"))
ROUNDS = int(setting("CODECS_ROUNDS", "5"))
SIDE = 224
BLOCK_BYTES = 24 << 20
CODECS: dict[str, dict[str, Any]] = {
    "deflate": {"compress": "deflate", "predictor": 2},
    "zstd": {"compress": "zstd", "predictor": 2},
    "LZW": {"compress": "lzw", "predictor": 2},
    "uncompressed": {},
    "float32, deflate": {"compress": "deflate", "predictor": 3, "dtype": "float32"},
}
PLOTTED = ("Mpx/s a core", "GDAL Mpx/s a core")


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)  # of the copies
    with disk_folder(6 * SIZE**2 * BANDS) as folder:
        scene = make_scene(Path(folder), SIZE, "tiled")
        return [_measured(name, _copy(scene.path, **options)) for name, options in CODECS.items()]


def _copy(path: Path, **options: Any) -> Path:
    """Write the scene with other options, and return the new file."""
    target = path.with_name("copy.tif")
    with rasterio.open(path) as source:
        pixels = source.read()
    floats = options.get("dtype") == "float32"
    layout = {"tiled": True, "blockxsize": TILE, "blockysize": TILE, "interleave": "pixel", "num_threads": "ALL_CPUS"}
    form = {"count": BANDS, "height": SIZE, "width": SIZE, "dtype": "uint16"} | layout | options
    with rasterio.open(target, "w", driver="GTiff", **form) as file:
        file.write(pixels.astype(np.float32) / 10_000 if floats else pixels)
    return target


def _measured(name: str, path: Path) -> Row:
    ways: dict[str, Callable[[Path], None]] = {"ours": _tiles, "GDAL": _rows_by_gdal}
    walls: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, read in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            read(path)
            if number:  # the first round warms up and is not counted
                walls[way].append(time.perf_counter() - wall)
                processor[way].append(time.process_time() - cpu)
    megapixels = SIZE**2 / 1e6
    figures: dict[str, float | Figure] = {}
    for way, prefix in (("ours", ""), ("GDAL", "GDAL ")):
        figures[f"{prefix}Mpx/s a core"] = Figure.of(megapixels / seconds for seconds in processor[way])
        figures[f"{prefix}Mpx/s"] = Figure.of(megapixels / seconds for seconds in walls[way])
    figures["a core, ratio"] = Figure.ratio(processor["GDAL"], processor["ours"], at_least=1.0)
    figures["wall, ratio"] = Figure.ratio(walls["GDAL"], walls["ours"])
    return Row(f"{name}, a scene of {SIZE}", figures)


def _tiles(path: Path) -> None:
    grid = TileGrid(SIZE, SIZE, SIDE)
    with open_raster(path) as raster:
        count = BLOCK_BYTES // (SIDE**2 * BANDS * raster.dtype.itemsize)
        windows = [grid.window(tile) for tile in range(len(grid))]
        for _ in raster.tiles(windows, size=(SIDE, SIDE), count=count):
            pass


def _rows_by_gdal(path: Path) -> None:
    with rasterio.Env(GDAL_NUM_THREADS="2"), rasterio.open(path, num_threads="2") as file:
        for row in range(0, SIZE, TILE):
            file.read(window=RasterioWindow(0, row, SIZE, TILE))
