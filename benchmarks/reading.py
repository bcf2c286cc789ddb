"""A scene read window by window without a model, with one thread and with a thread per core, in turns.

The scene has windows of 512 pixels and six bands of uint16, compressed with deflate. ``READING_SIZE=4096`` and
``READING_ROUNDS=1`` make a shorter run.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, Layout, Scene, disk_folder, make_scene
from vllm_mmout.geo import Window, open_raster
from vllm_mmout.geo.raster import sequence

SIZE = int(setting("READING_SIZE", "8192"))
ROUNDS = int(setting("READING_ROUNDS", "5"))
SIDE = 512
LAYOUTS: tuple[Layout, ...] = ("tiled", "striped")
PLOTTED = ("Mpx/s", "one thread Mpx/s")


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(3 * SIZE**2 * BANDS) as name:
        return [_measured(make_scene(Path(name), SIZE, layout)) for layout in LAYOUTS]


def _measured(scene: Scene) -> Row:
    walls: dict[int, list[float]] = {1: [], sequence.THREADS: []}
    for number in range(ROUNDS + 1):
        for threads, times in walls.items():
            seconds = _seconds(scene, threads)
            if number:  # the first round warms up and is not counted
                times.append(seconds)
    one_thread, all_threads = walls[1], walls[sequence.THREADS]
    figures: dict[str, float | Figure] = {
        "Mpx/s": Figure.of(scene.megapixels / seconds for seconds in all_threads),
        "one thread Mpx/s": Figure.of(scene.megapixels / seconds for seconds in one_thread),
        "ratio": Figure.ratio(one_thread, all_threads),
        "threads": sequence.THREADS,
    }
    return Row(f"a scene of {scene.size}, {scene.layout}", figures)


def _seconds(scene: Scene, threads: int) -> float:
    most, sequence.THREADS = sequence.THREADS, threads
    places = range(0, scene.size, SIDE)
    started = time.perf_counter()
    with open_raster(scene.path) as raster:
        for _ in raster.windows([Window(row, col, SIDE, SIDE) for row in places for col in places]):
            pass
    seconds = time.perf_counter() - started
    sequence.THREADS = most
    return seconds
