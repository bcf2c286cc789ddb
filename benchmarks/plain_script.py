"""A scene by `LLM.generate`, and by a script of rasterio, threads and torch, in turns, for three sizes of tiles.

The model is the embedded `water-index`, which costs next to nothing, so that reading, batching, joining and writing are
measured. The scene has 4096 x 4096 pixels in six bands of uint16 (deflate, blocks of 512). The script is what a
competent user writes: a thread per core reads windows ahead of the model, the model takes batches of a megapixel, and
the classes are written as one cloud-optimised GeoTIFF. It runs in a process of its own. The engine runs in this
process, as it does for ``vllm-mmout run``. Each pixel of each result is compared with the expected result.

``PLAIN_SIZE=1024`` takes a smaller scene, ``PLAIN_ROUNDS=1`` fewer rounds. ``SCENE_FOLDER`` sets the folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import rasterio
import torch
from numpy.typing import NDArray
from rasterio.windows import Window

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, Scene, disk_folder, make_scene
from vllm_mmout import OutputParams, embedded_model

SIZE = int(setting("PLAIN_SIZE", "4096"))
ROUNDS = int(setting("PLAIN_ROUNDS", "5"))
TILES = (64, 224, 512)
BATCH_PIXELS = 2**20
READ_AHEAD = 4
"""Number of batches that the script reads ahead of the model."""
ASKED_SPEED = 2.5
PLOTTED = ("LLM.generate s", "script s")


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    spawn = multiprocessing.get_context("spawn")
    with disk_folder(2 * SIZE**2 * BANDS) as name, ProcessPoolExecutor(1, spawn) as script:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled")
        # The script starts before the engine, which binds threads of this process to cores.
        script.submit(plain, scene.path, TILES[-1], folder / "script.tif").result()
        llm = _engine()
        rows = [_row(scene, tile, llm, script) for tile in TILES]
        llm.llm_engine.engine_core.shutdown()
    return rows


def _engine() -> Any:
    from vllm import LLM

    return LLM(embedded_model("water-index"), gpu_memory_utilization=0.3, distributed_executor_backend="uni")


def _row(scene: Scene, tile: int, llm: Any, script: ProcessPoolExecutor) -> Row:
    """Run both sides in turns and return their seconds. The first round warms up and is not counted."""
    ours, theirs = scene.path.with_name("ours.tif"), scene.path.with_name("script.tif")
    seconds: dict[Path, list[float]] = {ours: [], theirs: []}
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        llm.generate(scene.path, OutputParams(path=str(ours), tile=tile), use_tqdm=False)
        seconds[ours].append(time.perf_counter() - started)
        seconds[theirs].append(script.submit(plain, scene.path, tile, theirs).result())
        for result in seconds:
            scene.check(result)
    walls = [walls[1:] for walls in seconds.values()]
    figures = {
        "LLM.generate s": Figure.of(walls[0]),
        "script s": Figure.of(walls[1]),
        "ratio": Figure.ratio(walls[1], walls[0], at_least=ASKED_SPEED),
    }
    return Row(f"a scene of {SIZE} in tiles of {tile}", figures)


def plain(scene: Path, tile: int, out: Path) -> float:
    """Map a scene by rasterio and torch, write the classes to a file, and return the seconds."""
    model = _model()
    started = time.perf_counter()
    with rasterio.open(scene) as source:
        height, width, profile = source.height, source.width, source.profile
    windows = [Window(col, row, tile, tile) for row in _starts(height, tile) for col in _starts(width, tile)]
    classes = np.empty((height, width), np.uint8)
    with torch.inference_mode():
        for batch, pixels in _batches(scene, windows, max(1, BATCH_PIXELS // tile**2)):
            ids = model(torch.from_numpy(pixels)).argmax(1).to(torch.uint8).numpy()
            for window, ids_of_tile in zip(batch, ids, strict=True):
                classes[window.toslices()] = ids_of_tile
    _write(out, classes, profile)
    return time.perf_counter() - started


def _starts(length: int, tile: int) -> list[int]:
    """Return where the tiles of an axis begin. The last tile is moved inward."""
    return [*range(0, length - tile, tile), length - tile]


def _batches(scene: Path, windows: list[Window], size: int) -> Iterator[tuple[list[Window], NDArray[np.uint16]]]:
    """Yield the windows of each batch with their pixels [n, bands, height, width], which threads read ahead."""
    files = local()

    def read(window: Window) -> NDArray[np.uint16]:
        if not hasattr(files, "file"):
            files.file = rasterio.open(scene)  # threads must not share a handle of GDAL
        pixels: NDArray[np.uint16] = files.file.read(window=window)
        return pixels

    with ThreadPoolExecutor(_cores()) as pool:
        left = iter(windows)
        ahead: deque[tuple[Window, Future[NDArray[np.uint16]]]] = deque()
        while True:
            ahead.extend((window, pool.submit(read, window)) for window in islice(left, READ_AHEAD * size - len(ahead)))
            if not ahead:
                return
            batch = [ahead.popleft() for _ in range(min(size, len(ahead)))]
            yield [window for window, _ in batch], np.stack([future.result() for _, future in batch])


def _write(out: Path, classes: NDArray[np.uint8], source: dict[str, Any]) -> None:
    """Write the classes as a cloud-optimised GeoTIFF with the options of this package's results."""
    with rasterio.open(
        out,
        "w",
        driver="COG",
        dtype="uint8",
        count=1,
        nodata=255,
        **{key: source[key] for key in ("height", "width", "crs", "transform")},
        compress="deflate",
        level=3,
        predictor="yes",
        blocksize=512,
        overview_resampling="nearest",
        statistics="yes",
        num_threads="all_cpus",
    ) as file:
        file.write(classes, 1)


@cache
def _model() -> torch.nn.Module:
    from safetensors.torch import load_file

    from vllm_mmout.models.embedded.water_index import WaterIndex

    torch.set_num_threads(_cores())
    folder = Path(embedded_model("water-index"))
    model = WaterIndex(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
