"""Bytes that are allocated for a scene on its way through one process, by module: how often its pixels are copied.

A scene of ``COPIES_SIZE`` (4096), six bands of uint16, so twelve bytes a pixel, goes through ``LLM.generate`` once for
what only the first one costs, and once more. Blocks from 64 KiB on are counted, where they are asked for, whether or
not the allocator has them at hand. memray counts them (``pip install memray``); without it nothing is measured.
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
THE_MODEL, THE_FILE = "models.embedded", ("geo.raster.writing", "geo.raster.geotiff")
ASKED = 5 * 2 * BANDS
"""Bytes a pixel: as it is stored, decoded, in its window and in its batch; its class from the logits to the file."""


def run() -> list[Row]:
    """Count."""
    if find_spec("memray") is None:
        return [Row("left out: memray is not there (pip install memray)", {})]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = make_scene(folder, SIZE, "tiled")
        llm: Any = LLM(vllm_mmout.embedded_model("water-index"), gpu_memory_utilization=0.3)
        for number in range(2):
            found = _allocated(llm, scene.path, folder / f"{number}.tif")
        scene.check(folder / "1.tif")
    path = sum(count for module, count in found.items() if not module.startswith((THE_MODEL, *THE_FILE)))
    rows = [Row(module, {"bytes a pixel": count / SIZE**2}) for module, count in found.most_common()]
    return [*rows, Row("all but the model and GDAL's", {"of all bytes a pixel": Figure(path / SIZE**2, at_most=ASKED)})]


def _allocated(llm: Any, scene: Path, out: Path) -> Counter[str]:
    """Bytes by module of the package, the one that is next to the allocation."""
    import memray

    frees = (memray.AllocatorType.FREE, memray.AllocatorType.MUNMAP)
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        with memray.Tracker(notes):
            llm.generate(str(scene), vllm_mmout.OutputParams(path=str(out)), use_tqdm=False)
        found: Counter[str] = Counter()
        with memray.FileReader(notes) as reader:
            for one in reader.get_allocation_records():
                if one.size >= LARGE and one.allocator not in frees:
                    found[_module(one.stack_trace())] += one.size
    return found


def _module(stack: list[tuple[str, str, int]]) -> str:
    paths = (Path(file) for _, file, _ in stack)
    own = next((path for path in paths if path.is_relative_to(PACKAGE)), None)
    return "others" if own is None else ".".join(own.relative_to(PACKAGE).with_suffix("").parts)
