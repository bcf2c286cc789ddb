"""A scene served on a machine with 16 cores and an H200, which is imitated on any machine.

Where C code or the GPU works, a thread sleeps for the time that it took on the real machine. What Python does is real.
So the figure shows how fast the frontend can be there, as long as two cores are enough for its Python. Pixels are not
decoded, and the file is not a map.

The imitation was compared with the real machine at commit f2e292d4, with 16 threads that read. ViT-B/16: 88 to 95 Mpx/s
here, 87.5 there. ViT-L/16: 89 here, 56 there. A GPU takes longer for a block of few tiles than the imitation does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Figure, Row, setting
from benchmarks.scene_files import BANDS, disk_folder, make_scene

SIDE = int(setting("IMITATED_SIDE", "8192"))
"""Height and width of the scene in pixels."""
ROUNDS = int(setting("IMITATED_ROUNDS", "8"))
TILE = 224
CORES = 16
BATCH = 64
"""Tiles of a forward."""
NETWORKS = {"ViT-B/16": 499e6, "ViT-L/16": 174e6}
"""Speed of the bare encoders on an H200 in bfloat16, in pixels a second."""
DECODED_PER_S = 250e6
"""Bytes that a thread of that machine decodes in a second: deflate with predictor 2, uint16."""
COMPRESSED_PER_S = 300e6
"""Bytes of classes that a thread compresses in a second."""


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with disk_folder(2 * SIDE**2 * BANDS * 2) as name:
        scene = make_scene(Path(name), SIDE, "tiled")
        return [_row(network, scene.path) for network in NETWORKS]


def _row(network: str, scene: Path) -> Row:
    command = [sys.executable, "-m", "benchmarks.imitated_gpu", str(NETWORKS[network]), str(scene)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"{network} ended with status {child.returncode}:\n{child.stderr[-8000:]}")
    rounds = json.loads(child.stdout.splitlines()[-1])
    figures = {
        "served Mpx/s": Figure.of(SIDE**2 / 1e6 / seconds for seconds, _ in rounds),
        "frontend's processors s": Figure.of(used for _, used in rounds),
    }
    return Row(f"{network}, a scene of {SIDE} served, {BATCH} tiles a step, on an imitated H200", figures)


def _serve(pixels_per_s: float, scene: str) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each round, and the seconds of processors that this process, the frontend, used."""
    from vllm import LLM
    from vllm.platforms.cpu import CpuPlatform

    from vllm_mmout import OutputParams

    check = CpuPlatform.check_and_update_config

    def in_the_core(config: Any) -> None:
        check(config)
        config.parallel_config.distributed_executor_backend = "uni"  # as for a GPU: no process for the worker

    patch.object(CpuPlatform, "check_and_update_config", staticmethod(in_the_core)).start()
    with tempfile.TemporaryDirectory() as name:
        model = _model_folder(Path(name), pixels_per_s)
        llm: Any = LLM(model, max_num_seqs=BATCH, enforce_eager=True)
        try:
            for number in range(1 + ROUNDS):
                used, began = time.process_time(), time.perf_counter()
                llm.generate(scene, OutputParams(path=f"{name}/out.tif"), use_tqdm=False)
                if number:  # the first scene warms up and is not counted
                    yield time.perf_counter() - began, time.process_time() - used
        finally:
            llm.llm_engine.engine_core.shutdown()


def _model_folder(folder: Path, pixels_per_s: float) -> str:
    """Write the folder of the imitated model, and return its path."""
    import torch
    from safetensors.torch import save_file

    config = {
        "architectures": ["ImitatedModel"],
        "model_type": "mmout",
        "dtype": "float32",
        "bands": ["blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2"],
        "max_size": TILE,
        "min_size": TILE,
        "pixels_per_s": pixels_per_s,
        "mmout": {"model": "benchmarks.imitated_model:ImitatedModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    return str(folder)


def _imitate() -> None:
    """Have this process count 16 cores, decode and compress by sleeping, and lay out tiles as for a GPU."""
    usable = os.sched_getaffinity
    os.sched_getaffinity = lambda _pid: set(range(CORES))
    try:
        from vllm_mmout.geo.raster import files  # counts the cores
    finally:
        os.sched_getaffinity = usable
    import imagecodecs

    from vllm_mmout.geo.raster import plain_codecs
    from vllm_mmout.geo.raster.compressed_tiles import CompressedTiles
    from vllm_mmout.models.inputs.shared_memory import SharedMemory

    if len(usable(0)) < CORES and len(usable(0)) >= files.THREADS:
        raise RuntimeError("the modules that count the cores were imported before")
    compress, of_engines = vars(CompressedTiles)["_compressed"], SharedMemory.of_engines
    kept: dict[Any, bytes] = {}

    def decode(_data: Any, out: Any) -> Any:
        time.sleep(out.nbytes / DECODED_PER_S)
        return out

    def compressed(writer: Any, pixels: Any) -> bytes:
        time.sleep(pixels.nbytes / COMPRESSED_PER_S)
        if pixels.shape not in kept:
            kept[pixels.shape] = compress(writer, pixels)
        return kept[pixels.shape]

    decoders = vars(plain_codecs)["_DECODE"]
    patch.dict(decoders, {name: decode for name, decoder in decoders.items() if decoder is not None}).start()
    patch.object(imagecodecs, "delta_decode", lambda _data, axis, out: out).start()  # noqa: ARG005 - its time is in `decode`
    patch.object(CompressedTiles, "_compressed", compressed).start()
    patch.object(SharedMemory, "of_engines", lambda *sizes, **_: of_engines(*sizes, bands_last=True)).start()


if __name__ == "__main__":
    _imitate()
    print(json.dumps([*_serve(float(sys.argv[1]), sys.argv[2])]))
