"""Memory, speed, decodes and batches of whole scenes, from 2048 to 16384 pixels square, tiled and striped.

Six bands of uint16, deflate, through ``LLM.generate`` with the embedded model and the engine in its own process.

- Memory: each scene in a fresh process, so that no peak is another's. What is summed is the proportional set size of
  the frontend and all that it started but the engine's processes, plus what tmpfs holds more than before, every 20 ms
  by a process of its own. Idle is the median after the engine's start and twelve full steps: tmpfs includes the ring
  of ten messages between vLLM's engine core and its worker, of which each step writes the next, and which is as large
  as it gets after ten full steps of whatever.
- Speed and batches: one engine for each layout, all sizes in turn in several rounds, without the sampling, which holds
  the process up. What is compared are the scenes of one round.
- Decodes: how often the reader says that it decoded each segment of the file, counted in the runs for memory.

Each result is compared with what it must be, pixel by pixel, by rasterio. ``SCENE_SIZES=2048,4096`` measures these
sizes alone, the largest against the smallest; ``SCENE_LAYOUTS=tiled`` measures that layout alone; ``SCENE_FOLDER`` says
where the scenes are made (some 3 GB, on a disk).
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
"""Of one more scene of each layout, where what tiles share would be decoded again and again."""
OVERLAP_SIZE = 8192
ROUNDS = 3
ASKED_GROWTH_MIB = 150.0
ASKED_ABOVE_IDLE_MIB = 400.0
ASKED_DECODES = 2
ASKED_SPEED = 0.95
ASKED_BATCH = 0.9
PLOTTED = ("above idle MiB", "Mpx/s")


def run() -> list[Row]:
    """Measure; for each layout a row for each scene and one that compares the largest with the smallest."""
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
    """The figures of ``scene_child.memory``; the result is checked here, where that costs the other process nothing."""
    out = folder / "out.tif"
    found = call(
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
    _say(f"memory of {scene.layout} {scene.size}, overlap {overlap}: {found}")
    return found


def _speed(folder: Path, scenes: list[Scene], image: Scene) -> dict[str, Any]:
    """The figures of ``scene_child.speed``; small scenes are repeated, so that a round gives each size its time."""
    out = folder / "out.tif"
    repeats = [max(1, 8 * SIZES[0] ** 2 // scene.size**2) for scene in scenes]
    paths = [str(scene.path) for scene in scenes]
    with tempfile.TemporaryDirectory() as model:
        found = call(
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
    _say(f"speed of {scenes[0].layout}: {found['seconds']}")
    return found


def _row(scene: Scene, memory: dict[str, Any], speed: dict[str, Any], place: int) -> Row:
    most = speed["max_num_seqs"]
    batch = statistics.mean(speed["batches"][place] or [most])  # a scene of fewer tiles has no batch to be full
    idle, peak = memory["idle"]["median"], memory["scene"]["sum"]
    figures = {
        "idle MiB": idle,
        "peak MiB": peak,
        "above idle MiB": peak - idle,
        "of it tmpfs MiB": memory["scene"]["tmpfs"] - memory["idle"]["tmpfs"],
        "Mpx/s": scene.megapixels / statistics.median(speed["seconds"][place]),
        f"mean batch of {most}": batch,
        "decodes of a segment": memory["decoded most"],
    }
    asked = [f"batch >= {ASKED_BATCH * most:g}", f"decodes <= {ASKED_DECODES}"]
    met = [batch >= ASKED_BATCH * most, memory["decoded most"] <= ASKED_DECODES]
    if place == 0:
        asked.insert(0, f"<= {ASKED_ABOVE_IDLE_MIB:g} MiB above idle")
        met.append(peak - idle <= ASKED_ABOVE_IDLE_MIB)
    return Row(f"scene of {scene.size}, {scene.layout}", figures, ", ".join(asked), all(met))


def _comparison(layout: Layout, memories: list[dict[str, Any]], speed: dict[str, Any]) -> Row:
    small, large = SIZES[0], SIZES[-1]
    growth = memories[-1]["scene"]["sum"] - memories[0]["scene"]["sum"]
    ratios = [
        (first / small**2) / (last / large**2)
        for first, last in zip(speed["seconds"][0], speed["seconds"][-1], strict=True)
    ]
    ratio = statistics.median(ratios)
    figures = {"peak MiB more": growth, "Mpx/s ratio": ratio, "least ratio of a round": min(ratios)}
    asked = f"<= {ASKED_GROWTH_MIB:g} MiB more, >= {ASKED_SPEED:g} of the Mpx/s"
    met = growth <= ASKED_GROWTH_MIB and ratio >= ASKED_SPEED
    return Row(f"scenes, {layout}: {large} against {small}", figures, asked, met)


def _overlap_row(scene: Scene, memory: dict[str, Any]) -> Row:
    idle, peak = memory["idle"]["median"], memory["scene"]["sum"]
    figures = {
        "idle MiB": idle,
        "peak MiB": peak,
        "above idle MiB": peak - idle,
        "of it tmpfs MiB": memory["scene"]["tmpfs"] - memory["idle"]["tmpfs"],
        "decodes of a segment": memory["decoded most"],
        "mean decodes": memory["decoded mean"],
    }
    asked = f"decodes <= {ASKED_DECODES}"
    name = f"scene of {scene.size}, {scene.layout}, overlap {OVERLAP}"
    return Row(name, figures, asked, memory["decoded most"] <= ASKED_DECODES)


def _say(text: str) -> None:
    """All that was found, for who wants to know more than the table says."""
    print(text, file=sys.stderr, flush=True)
