"""Speed on a GPU: scenes served and bare encoders, where the time goes, small requests beside a scene, compiling.

``python -m benchmarks gpu`` measures in bfloat16 with random weights on a CUDA device, in at most ten minutes. Each
part has a time budget. What does not begin within it is left out, and a row says so. Without a device, the benchmark
lists what it would measure. ``GPU_SECONDS=300`` makes a shorter run. ``GPU_TRY=1`` runs everything on the CPU with
small networks, to test the code.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from benchmarks.gpu_kernels import compiled, copies, ways
from benchmarks.gpu_scene import served, small_requests, stages
from benchmarks.gpu_settings import SIDE, TRIED, Bench, Clock
from benchmarks.report import Row, as_table, setting

PLOTTED = ("ratio",)
WHOLE_S = float(setting("GPU_SECONDS", "540"))
"""Seconds after which no step begins. A step takes at most a minute."""
Step: TypeAlias = Callable[[Bench, Clock], Iterable[Row]]


@dataclass(frozen=True)
class Part:
    """A part of the benchmark."""

    about: str
    """Description of the measurement."""
    budget_s: float
    """Seconds after which no further step of the part begins."""
    steps: Sequence[Step]


def run() -> list[Row]:
    """Run the benchmark and return its rows. A step that fails becomes a row, and the other steps still run."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        if not (TRIED or torch.cuda.is_available()):
            return [Row(f"not measured, no CUDA device: {part.about}", {}) for part in _parts(bench)]
        whole = Clock(time.monotonic() + WHOLE_S)
        rows = []
        for part in _parts(bench):
            found = _rows(part, bench, whole)
            print(as_table(found), flush=True)  # kept if the run is stopped
            rows += found
        return rows


def _parts(bench: Bench) -> list[Part]:
    names = list(bench.networks)
    listed = ", ".join(names)
    return [
        Part(f"a scene of {SIDE} served, and bare networks: {listed}", 180, [partial(_served, name) for name in names]),
        Part(f"stages of a scene: {bench.first}", 40, [partial(_stages, bench.first)]),
        Part(f"latency of a tile, alone and beside a scene: {bench.first}", 60, [small_requests]),
        Part("classes by reduce and copy beside copied logits", 20, [copies]),
        Part("pictures of tokens decoded in batches", 40, [_tokens]),
        Part(f"kernels of the encoder, eager and compiled: {bench.first}", 90, [ways]),
        Part(
            f"a scene with asynchronous scheduling: {', '.join(names[:2])}",
            70,
            [partial(_served, name, ahead=True) for name in names[:2]],
        ),
        Part(f"forwards compiled by `compile` and eager: {bench.first}", 120, [compiled]),
        Part(f"stages of a scene: {', '.join(names[1:])}", 90, [partial(_stages, name) for name in names[1:]]),
    ]


def _rows(part: Part, bench: Bench, whole: Clock) -> list[Row]:
    """Return the rows of the steps of a part that begin in time."""
    clock = Clock(min(whole.end, time.monotonic() + part.budget_s))
    rows: list[Row] = []
    for number, step in enumerate(part.steps, start=1):
        if clock.over:
            left = f"steps {number} to {len(part.steps)} of " if number > 1 else ""
            return [*rows, Row(f"not measured, the time was over: {left}{part.about}", {})]
        try:
            rows += step(bench, clock)
        except Exception as error:  # noqa: BLE001 - the row reports it, and the results of the other steps are kept
            rows.append(Row(f"failed, {type(error).__name__}: {error}: {part.about}", {}, "figures", met=False))
    return rows


def _served(name: str, bench: Bench, clock: Clock, *, ahead: bool = False) -> Iterable[Row]:
    return served(bench, name, clock, **{"async_scheduling": True} if ahead else {})


def _stages(name: str, bench: Bench, clock: Clock) -> Iterable[Row]:
    return stages(bench, name, clock)


def _tokens(bench: Bench, _clock: Clock) -> Iterable[Row]:
    from benchmarks.token_media import SIDE as CODES
    from benchmarks.token_media import in_batches
    from benchmarks.token_model import write_decoder

    decoder = write_decoder(bench.folder / "decoder", CODES)
    sizes = {"pictures": 4, "rounds": 1} if TRIED else {}
    yield in_batches(decoder, "cpu" if TRIED else "cuda:0", **sizes)
