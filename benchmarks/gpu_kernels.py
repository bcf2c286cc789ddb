"""Rows of `benchmarks.gpu` about the device alone: kernels of compiled and eager forwards, and copies to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.compiled import Network, timed
from benchmarks.compiled import rows as compiled_rows
from benchmarks.gpu_settings import BATCH, COMPILED_BATCH, DEVICE, DTYPE, ROUNDS, TRIED, Bench, Clock
from benchmarks.report import Figure, Row

CLASSES = (2, 19, 150)
WAYS: Mapping[str, Mapping[str, str]] = {
    "eager": {},
    "CUDA graphs of eager kernels": {"backend": "aot_eager" if TRIED else "cudagraphs"},
    "Inductor with CUDA graphs": {"mode": "default" if TRIED else "reduce-overhead"},
    "Inductor": {"mode": "default"},
}
"""Arguments of ``torch.compile``, or none for eager."""
SHOWN = 4
"""Number of kernels listed for each way. The slowest are listed."""


def copies(_bench: Bench, clock: Clock) -> Iterator[Row]:
    """Yield the time to copy a step's results to the host: packed class ids against the logits."""
    import torch

    from vllm_mmout import OutputParams
    from vllm_mmout.engine import wire
    from vllm_mmout.processors import SegmentationProcessor

    processor, count = SegmentationProcessor(), 2 if TRIED else 16

    def reduced(logits: torch.Tensor) -> torch.Tensor:
        return wire.pack({"segmentation": processor.reduce(logits, OutputParams())}).cpu()

    for classes in CLASSES:
        logits = torch.randn((count, classes, 512, 512), device=DEVICE, dtype=torch.bfloat16)
        copy = logits.clone if TRIED else logits.cpu  # on the CPU, logits.cpu would copy nothing
        pairs = []
        with torch.inference_mode():
            for number in clock.rounds():
                pair = timed(copy), timed(lambda: reduced(logits))  # noqa: B023 - called at once
                pairs += [pair] * bool(number)
        logits_ms, classes_ms = ([1e3 * pair[side][0] for pair in pairs] for side in (0, 1))
        figures = {
            "ratio": Figure.ratio(logits_ms, classes_ms),
            "logits ms": Figure.of(logits_ms),
            "classes ms": Figure.of(classes_ms),
            "logits MiB": pairs[0][0][1].nbytes / 2**20,
            "classes MiB": pairs[0][1][1].nbytes / 2**20,
        }
        yield Row(f"{count} requests of 512 x 512, {classes} classes", figures)


def ways(bench: Bench, clock: Clock) -> Iterator[Row]:
    """Yield the time of an encoder's forward, eager and compiled in several ways, and the kernels that take longest.

    Inductor's kernels were slower than eager ones on an H200; the kernels of both say why.
    """
    import torch

    from benchmarks.gpu_model import BANDS, TILE, build

    encoder = build(bench.networks[bench.first]).encoder.to(DEVICE, getattr(torch, DTYPE))
    tiles = torch.randn((BATCH, BANDS, TILE, TILE), device=DEVICE, dtype=getattr(torch, DTYPE))
    kernel_rows: list[Row] = []
    for way, arguments in WAYS.items():
        if way != "eager" and clock.over:
            yield Row(f"not measured, the time was over: forwards by {way}", {})
            continue
        torch._dynamo.reset()  # noqa: SLF001 - there is no public function for this
        forward: Any = torch.compile(encoder, dynamic=False, **arguments) if arguments else encoder
        with torch.inference_mode():
            for _ in range(3):  # the second run records CUDA graphs
                forward(tiles)
            seconds = [timed(lambda: [forward(tiles) for _ in range(10)])[0] / 10 for _ in range(ROUNDS)]  # noqa: B023
            kernels = _kernels(lambda: forward(tiles))  # noqa: B023 - called at once
        figures = {
            "forward ms": Figure.of(1e3 * round_s for round_s in seconds),
            "kernels ms": sum(ms for ms, _ in kernels.values()),
            "kernels": sum(count for _, count in kernels.values()),
        }
        yield Row(f"{bench.first}, encoder, batch of {BATCH}, {way}", figures)
        for name, (ms, count) in sorted(kernels.items(), key=lambda item: -item[1][0])[:SHOWN]:
            kernel_rows.append(Row(f"{way}: {_short(name)}", {"ms a forward": ms, "calls": count}))
    yield from kernel_rows


def _kernels(forward: Any) -> dict[str, tuple[float, int]]:
    """Return milliseconds and calls of each kernel in a forward, by torch's profiler. On a CPU, of operators."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_device = not TRIED
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_device]
    with profile(activities=activities) as profiled:
        timed(forward)
    kernels = {}
    for event in profiled.key_averages():
        if on_device and event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        ms = (event.self_device_time_total if on_device else event.self_cpu_time_total) / 1e3
        if ms > 0:
            kernels[event.key] = ms, event.count
    return kernels


def _short(name: str) -> str:
    """Return the beginning of a kernel's name, without signs that would end a cell of a table."""
    return name.replace("|", "/").replace("\n", " ")[:70]


def compiled(bench: Bench, _clock: Clock) -> Iterator[Row]:
    """Yield the forwards of the engine's option `compile` against eager forwards."""
    from benchmarks.gpu_model import BANDS, TILE, SegmentingModel

    network = Network(
        bench.first, lambda: SegmentingModel({"network": bench.networks[bench.first]}), (BANDS, TILE, TILE)
    )
    yield from compiled_rows(network, DTYPE, DEVICE, (1, COMPILED_BATCH))
