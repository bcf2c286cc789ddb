"""Memory, speed, decodes and blocks of whole scenes, from 2048 to 16384 pixels square, tiled and striped.

Scenes of six bands of uint16 (deflate) go through ``LLM.generate`` with the embedded model. The engine has its own
process.

- Memory: each scene runs in a fresh process, so that its peak is its own. Every 20 ms, another process sums the
  proportional set size of the frontend and its children except the engine's processes, plus the growth of tmpfs. Idle
  is the median after the engine's start and twelve full steps, because tmpfs includes the ring of ten messages between
  vLLM's engine core and its worker: each step writes the next message, so the ring has its full size after ten full
  steps of any request.
- Speed and blocks: one engine for each layout runs all sizes in turn in several rounds, without the sampling, which
  slows the process down. Scenes of the same round are compared.
- Decodes: the reader counts how often it decodes each segment of the file, in the runs for memory.

rasterio compares each result with the expected result, pixel by pixel. ``SCENE_SIZES=2048,4096`` measures only these
sizes and compares the largest with the smallest. ``SCENE_LAYOUTS=tiled`` measures only that layout. ``SCENE_FOLDER``
sets the folder of the scenes (some 3 GB, on a disk).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from benchmarks.report import Row, setting
from benchmarks.scene_child import call
from benchmarks.scene_files import BANDS, Layout, Scene, disk_folder, make_image, make_scene

SIZES = tuple(sorted(int(size) for size in setting("SCENE_SIZES", "2048,4096,8192,16384").split(",")))
LAYOUTS = cast("list[Layout]", setting("SCENE_LAYOUTS", "tiled,striped").split(","))
OVERLAP = 64
"""Overlap in pixels of one more scene of each layout, whose shared pixels could be decoded again and again."""
OVERLAP_SIZE = 8192
ROUNDS = 3
ASKED_GROWTH_MIB = 150.0
ASKED_ABOVE_IDLE_MIB = 400.0
ASKED_DECODES = 2
ASKED_SPEED = 0.95
PLOTTED = ("above idle MiB", "Mpx/s")


def run() -> list[Row]:
    """Return a row for each layout and scene, and for each layout a row that compares the largest with the smallest."""
    rows = []
    for layout in LAYOUTS:
        with disk_folder(sum(size**2 for size in SIZES) * BANDS * 2) as name:
            rows += _layout(Path(name), layout)
    return rows


def _layout(folder: Path, layout: Layout) -> list[Row]:
    scenes = [make_scene(folder, size, layout) for size in SIZES]
    image = make_image(folder, 1)
    memories = [_memory(folder, scene, image) for scene in scenes]
    speed = _speed(folder, scenes, image)
    rows = [_row(scene, memories[place], speed, place) for place, scene in enumerate(scenes)]
    rows.append(_comparison(layout, memories, speed))
    overlapping = next((scene for scene in scenes if scene.size == OVERLAP_SIZE), scenes[-1])
    return [*rows, _overlap_row(overlapping, _memory(folder, overlapping, image, OVERLAP))]


def _memory(folder: Path, scene: Scene, image: Scene, overlap: int = 0) -> dict[str, Any]:
    """Return the figures of ``scene_child.memory``. The result is checked here, to save that process the memory."""
    out = folder / "out.tif"
    figures = call(
        "memory",
        folder,
        scene=str(scene.path),
        image=str(image.path),
        out=str(out),
        overlap=overlap,
        segments=scene.segments(),
    )
    scene.check(out)
    out.unlink()
    _say(f"memory of {scene.layout} {scene.size}, overlap {overlap}: {figures}")
    return figures


def _speed(folder: Path, scenes: list[Scene], image: Scene) -> dict[str, Any]:
    """Return the figures of ``scene_child.speed``. Small scenes are repeated, so that each size has enough time."""
    out = folder / "out.tif"
    repeats = [max(1, 8 * SIZES[0] ** 2 // scene.size**2) for scene in scenes]
    paths = [str(scene.path) for scene in scenes]
    with tempfile.TemporaryDirectory() as model:
        figures = call(
            "speed",
            folder,
            scenes=paths,
            repeats=repeats,
            image=str(image.path),
            out=str(out),
            rounds=ROUNDS,
            model=model,
        )
    scenes[-1].check(out)
    out.unlink()
    _say(f"speed of {scenes[0].layout}: {figures['seconds']}")
    return figures


def _row(scene: Scene, memory: dict[str, Any], speed: dict[str, Any], place: int) -> Row:
    idle, peak = memory["idle"]["median"], memory["scene"]["sum"]
    figures = {
        "idle MiB": idle,
        "peak MiB": peak,
        "above idle MiB": peak - idle,
        "tmpfs part MiB": memory["scene"]["tmpfs"] - memory["idle"]["tmpfs"],
        "Mpx/s": scene.megapixels / statistics.median(speed["seconds"][place]),
        "tiles a forward": statistics.mean(speed["forwards"][place]),
        "decodes of a segment": memory["decoded most"],
    }
    targets = [f"decodes <= {ASKED_DECODES}"]
    met = [memory["decoded most"] <= ASKED_DECODES]
    if place == 0:
        targets.insert(0, f"<= {ASKED_ABOVE_IDLE_MIB:g} MiB above idle")
        met.append(peak - idle <= ASKED_ABOVE_IDLE_MIB)
    return Row(f"scene of {scene.size}, {scene.layout}", figures, ", ".join(targets), all(met))


def _comparison(layout: Layout, memories: list[dict[str, Any]], speed: dict[str, Any]) -> Row:
    small, large = SIZES[0], SIZES[-1]
    growth = memories[-1]["scene"]["sum"] - memories[0]["scene"]["sum"]
    ratios = [
        (first / small**2) / (last / large**2)
        for first, last in zip(speed["seconds"][0], speed["seconds"][-1], strict=True)
    ]
    ratio = statistics.median(ratios)
    figures = {"peak growth MiB": growth, "Mpx/s ratio": ratio, "least ratio of a round": min(ratios)}
    target = f"<= {ASKED_GROWTH_MIB:g} MiB more, >= {ASKED_SPEED:g} of the Mpx/s"
    met = growth <= ASKED_GROWTH_MIB and ratio >= ASKED_SPEED
    return Row(f"scenes, {layout}: {large} against {small}", figures, target, met)


def _overlap_row(scene: Scene, memory: dict[str, Any]) -> Row:
    idle, peak = memory["idle"]["median"], memory["scene"]["sum"]
    figures = {
        "idle MiB": idle,
        "peak MiB": peak,
        "above idle MiB": peak - idle,
        "tmpfs part MiB": memory["scene"]["tmpfs"] - memory["idle"]["tmpfs"],
        "decodes of a segment": memory["decoded most"],
        "mean decodes": memory["decoded mean"],
    }
    target = f"decodes <= {ASKED_DECODES}"
    name = f"scene of {scene.size}, {scene.layout}, overlap {OVERLAP}"
    return Row(name, figures, target, memory["decoded most"] <= ASKED_DECODES)


def _say(text: str) -> None:
    """Print all figures, which are more than the table shows, to stderr."""
    print(text, file=sys.stderr, flush=True)
