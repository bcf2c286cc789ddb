"""Speed on a GPU: a scene served and by the bare encoder, ``reduce`` against copied logits, compiled forwards.

``python -m benchmarks gpu`` measures in bfloat16 with random weights on a CUDA device. Without a device, it lists what
it would measure. ``GPU_TRY=1`` runs everything on the CPU with a small encoder, to test the code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compiled import Network, timed
from benchmarks.compiled import rows as compiled_rows
from benchmarks.report import Figure, Row, setting

TRIED = setting("GPU_TRY", "") == "1"
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
DEVICE = "cpu" if TRIED else "cuda"
DTYPE = "bfloat16"
SIDE = int(setting("GPU_SIDE", "512" if TRIED else "8192"))
"""Height and width of the scene in pixels."""
BATCH = 4 if TRIED else 32
"""Tiles of a forward, bare and served. It is also the largest batch that is compiled."""
ROUNDS = 3 if TRIED else 7
CLASSES = (2, 19, 150)
PLOTTED = ("ratio",)


def run() -> list[Row]:
    """Run the benchmark and return its rows. A part that fails becomes a row, and the other parts still run."""
    import torch

    parts: Mapping[str, Callable[[], Iterator[Row]]] = {
        f"classes by reduce and copy beside copied logits, {', '.join(map(str, CLASSES))} classes": _copies,
        "forwards compiled by `compile` and eager, ViT-B/16 and ViT-L/16": _compiled,
        f"a scene of {SIDE} x {SIDE} served, and bare encoders on as many tiles, ViT-B/16 and ViT-L/16": _served,
    }
    if not (TRIED or torch.cuda.is_available()):
        return [Row(f"not measured, no CUDA device: {description}", {}) for description in parts]
    rows: list[Row] = []
    for description, measure in parts.items():
        try:
            rows += measure()
        except Exception as error:  # noqa: BLE001 - the row reports it, and the results of the other parts are kept
            rows.append(Row(f"failed, {type(error).__name__}: {error}: {description}", {}, "figures", met=False))
    return rows


def _sizes() -> Mapping[str, Mapping[str, int]]:
    from benchmarks.gpu_model import SIZES

    return {"tiny ViT/16": TINY} if TRIED else SIZES


def _copies() -> Iterator[Row]:
    """Time the copy of a step's results to the host: packed class ids against the logits."""
    import torch

    from vllm_mmout import OutputParams
    from vllm_mmout.engine import wire
    from vllm_mmout.processors import SegmentationProcessor

    processor, count = SegmentationProcessor(), 2 if TRIED else 16

    def reduced() -> torch.Tensor:
        return wire.pack({"segmentation": processor.reduce(logits, OutputParams())}).cpu()

    with torch.inference_mode():
        for classes in CLASSES:
            logits = torch.randn((count, classes, 512, 512), device=DEVICE, dtype=torch.bfloat16)
            # On the CPU, logits.cpu would copy nothing.
            copied = logits.clone if TRIED else logits.cpu
            pairs = [(timed(copied), timed(reduced)) for _ in range(ROUNDS + 1)][1:]
            logits_ms, classes_ms = ([1e3 * pair[side][0] for pair in pairs] for side in (0, 1))
            figures = {
                "ratio": Figure.ratio(logits_ms, classes_ms),
                "logits ms": Figure.of(logits_ms),
                "classes ms": Figure.of(classes_ms),
                "logits MiB": pairs[0][0][1].nbytes / 2**20,
                "classes MiB": pairs[0][1][1].nbytes / 2**20,
            }
            yield Row(f"{count} requests of 512 x 512, {classes} classes", figures)


def _compiled() -> Iterator[Row]:
    from benchmarks.gpu_model import BANDS, TILE, SegmentingViT

    for name, size in _sizes().items():
        network = Network(name, partial(SegmentingViT, {"encoder": size}), (BANDS, TILE, TILE))
        yield from compiled_rows(network, DTYPE, DEVICE, (1, BATCH))


def _served() -> Iterator[Row]:
    """Yield rows for a scene file served to a result file, against the encoder alone on tiles in device memory."""
    from benchmarks.scene_files import make_scene

    with tempfile.TemporaryDirectory() as name:
        scene = make_scene(Path(name), SIDE, "tiled")
        for network, size in _sizes().items():
            for compile_ in ("off", "on"):
                yield _one_served(Path(name), str(scene.path), network, size, compile_)


def _one_served(folder: Path, scene: str, network: str, size: Mapping[str, int], compile_: str) -> Row:
    import torch

    from benchmarks.gpu_model import BANDS, TILE, encoder, write_folder
    from vllm_mmout import OutputParams

    kind = getattr(torch, DTYPE)
    bare: Any = encoder(size).to(DEVICE, kind)
    if compile_ == "on":
        bare = torch.compile(bare, dynamic=False, mode="default" if TRIED else "reduce-overhead")
    tiles = torch.randn((BATCH, BANDS, TILE, TILE), device=DEVICE, dtype=kind)
    forwards = (-(-SIDE // TILE)) ** 2 // BATCH
    out = str(folder / "out.tif")

    def bare_forwards() -> None:
        for _ in range(forwards):
            bare(tiles)

    model = write_folder(folder / f"{network.replace('/', '-')}-{compile_}", size, DTYPE)
    with torch.inference_mode(), _engine(model, compile_) as llm:
        pairs = []
        for _ in range(ROUNDS + 1):
            alone_s, _ = timed(bare_forwards)
            served_s, _ = timed(lambda: llm.generate(scene, OutputParams(path=out), use_tqdm=False))
            pairs.append((forwards * BATCH * TILE**2 / 1e6 / alone_s, SIDE**2 / 1e6 / served_s))
    del pairs[0]  # the first round warms up
    alone, served = zip(*pairs, strict=True)
    figures = {
        "served Mpx/s": Figure.of(served),
        "bare encoder Mpx/s": Figure.of(alone),
        "ratio": Figure.ratio(served, alone),
    }
    return Row(f"{network}, {DTYPE}, compile {compile_}, a scene of {SIDE} served", figures)


@contextmanager
def _engine(model: str, compile_: str) -> Iterator[Any]:
    from vllm import LLM

    llm: Any = LLM(
        model,
        max_num_seqs=BATCH,
        gpu_memory_utilization=0.3,
        distributed_executor_backend="uni",
        additional_config={"mmout": {"compile": compile_}},
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
