"""Bytes that are allocated for a scene on its way through one process, by module: how often its pixels are copied.

A scene of ``COPIES_SIZE`` (4096) pixels square with six bands of uint16, so twelve bytes a pixel, goes through
``LLM.generate`` twice; the second run is counted. Allocations of 64 KiB and more count where they are requested,
whether or not the allocator has a free block of that size. memray counts them (``pip install memray``); without memray,
nothing is measured.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import vllm_mmout
from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, make_scene

SIZE = int(setting("COPIES_SIZE", "4096"))
LARGE = 2**16
PACKAGE = Path(vllm_mmout.__file__).parent
THE_MODEL = "models.embedded"
THE_FILE = tuple(
    f"geo.raster.{name}" for name in ("writing", "geotiff", "pixels_file", "compressed_tiles", "band_statistics")
)
ASKED = 5 * 2 * BANDS
"""Bytes a pixel: stored, decoded, in its window and in its batch; and its class, from the logits to the file."""


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    if find_spec("memray") is None:
        return [Row("not measured: memray is not installed (pip install memray)", {})]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled")
        llm: Any = LLM(vllm_mmout.embedded_model("water-index"), gpu_memory_utilization=0.3)
        for number in range(2):
            allocated = _allocated(llm, scene.path, folder / f"{number}.tif")
        scene.check(folder / "1.tif")
    path = sum(count for module, count in allocated.items() if not module.startswith((THE_MODEL, *THE_FILE)))
    rows = [Row(module, {"bytes a pixel": count / SIZE**2}) for module, count in allocated.most_common()]
    return [
        *rows,
        Row(
            "all modules except the model and the GDAL writer",
            {"total bytes a pixel": Figure(path / SIZE**2, at_most=ASKED)},
        ),
    ]


def _allocated(llm: Any, scene: Path, out: Path) -> Counter[str]:
    """Return the allocated bytes by module, which is the package's module closest to the allocation in the stack."""
    import memray

    frees = (memray.AllocatorType.FREE, memray.AllocatorType.MUNMAP)
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        with memray.Tracker(notes):
            llm.generate(str(scene), vllm_mmout.OutputParams(path=str(out)), use_tqdm=False)
        allocated: Counter[str] = Counter()
        with memray.FileReader(notes) as reader:
            for record in reader.get_allocation_records():
                if record.size >= LARGE and record.allocator not in frees:
                    allocated[_module(record.stack_trace())] += record.size
    return allocated


def _module(stack: list[tuple[str, str, int]]) -> str:
    paths = (Path(file) for _, file, _ in stack)
    own = next((path for path in paths if path.is_relative_to(PACKAGE)), None)
    return "others" if own is None else ".".join(own.relative_to(PACKAGE).with_suffix("").parts)
