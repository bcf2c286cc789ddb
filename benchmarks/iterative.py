"""Requests of a diffusion model at different steps: one short beside long requests, eight of equal length, and many.

The model is a class-conditional DiT-S/4 of diffusers with random weights, which an engine in this process serves. Three
things are measured:

- the engine steps until a request of 4 steps ends that starts while eight requests of 50 steps run;
- the speed of eight requests of ``ITERATIVE_STEPS`` (10) steps by ``LLM.generate``, and of diffusers' own call of one
  batch of eight with as many threads, in turns, with the pictures compared;
- the largest number of states, and the extra memory, of eight times as many requests as run at once.

``ITERATIVE_ROUNDS`` (5)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.report import Figure, Row, setting
from vllm_mmout import OutputParams

STEPS = int(setting("ITERATIVE_STEPS", "10"))
ROUNDS = int(setting("ITERATIVE_ROUNDS", "5"))
AT_ONCE = 8
ASKED_STEPS = 6
PACKAGES = ("diffusers",)
PLOTTED = ("pictures/s",)


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with tempfile.TemporaryDirectory(prefix="mmout-bench-") as name:
        folder = _folder(Path(name))
        llm = _engine(folder, max_num_seqs=AT_ONCE + 1)
        rows = [_short_beside_long(llm)]
        rows += _beside_diffusers(llm, folder)
        rows += _many(llm)
    return rows


def _folder(folder: Path) -> str:
    """Write DiT-S/4 (33 million weights, 8 x 8 patches) and a small decoder to 256 x 256 pixels. Return the folder."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    torch.manual_seed(0)
    network: Any = DiTTransformer2DModel
    transformer = network(
        num_attention_heads=6,
        attention_head_dim=64,
        in_channels=4,
        out_channels=4,
        num_layers=12,
        sample_size=32,
        patch_size=4,
        num_embeds_ada_norm=10,
    )
    decoder: Any = AutoencoderKL
    vae = decoder(
        block_out_channels=[16, 32, 32, 32],
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        latent_channels=4,
        norm_num_groups=8,
    )
    pipeline: Any = DiTPipeline(transformer=transformer, vae=vae, scheduler=DDIMScheduler())  # type: ignore[no-untyped-call]
    pipeline.save_pretrained(folder / "dit")
    return str(folder / "dit")


def _engine(folder: str, **arguments: Any) -> Any:
    from vllm import LLM

    return LLM(folder, gpu_memory_utilization=0.3, distributed_executor_backend="uni", **arguments)


def _params(steps: int, seed: int) -> OutputParams:
    return OutputParams(num_inference_steps=steps, seed=seed, guidance_scale=1.0)


def _short_beside_long(llm: Any) -> Row:
    engine = llm.llm_engine
    for number in range(AT_ONCE):
        _add(engine, f"long-{number}", 50)
    for _ in range(10):
        engine.step()
    _add(engine, "short", 4)
    steps, ended = 0, False
    while not ended:
        ended = any(output.request_id == "short" for output in engine.step())
        steps += 1
    while engine.has_unfinished_requests():
        engine.step()
    name = f"a request of 4 steps beside {AT_ONCE} requests of 50"
    return Row(name, {"engine steps until it ends": Figure.of([steps], at_most=ASKED_STEPS)})


def _add(engine: Any, name: str, steps: int) -> None:
    from vllm import PoolingParams

    from vllm_mmout.engine import wire

    inputs, params = engine.output_processor.binding.inputs, _params(steps, 0)
    mapped = inputs.map({"class_labels": 3}, params)
    marked = wire.marked(PoolingParams(task="plugin"), wire.mark(params))
    engine.add_request(name, inputs.render(mapped, inputs.tokens(mapped, params)), marked)


def _beside_diffusers(llm: Any, folder: str) -> list[Row]:
    import torch
    from diffusers import DiTPipeline

    own: Any = DiTPipeline.from_pretrained(folder)
    own.set_progress_bar_config(disable=True)
    labels = list(range(AT_ONCE))

    def ours() -> list[Any]:
        params = [_params(STEPS, seed) for seed in labels]
        results = llm.generate([{"class_labels": label} for label in labels], params, use_tqdm=False)
        return [np.asarray(result.outputs.image) for result in results]

    def theirs() -> list[Any]:
        noise = [torch.Generator().manual_seed(seed) for seed in labels]
        generated = own(class_labels=labels, num_inference_steps=STEPS, guidance_scale=1.0, generator=noise)
        return [np.asarray(picture) for picture in generated.images]

    for mine, other in zip(ours(), theirs(), strict=True):
        assert np.abs(mine.astype(int) - other.astype(int)).max() <= 1, "a picture differs from diffusers' own"
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, seconds_of_rounds in zip((ours, theirs), times, strict=True):
            seconds_of_rounds.append(_seconds(call))
    rates = [[AT_ONCE / seconds for seconds in seconds_of_rounds] for seconds_of_rounds in times]
    names = ("by LLM.generate", "by diffusers' own call of one batch")
    rows = [
        Row(f"{AT_ONCE} pictures of {STEPS} steps, {name}", {"pictures/s": Figure.of(rate)})
        for name, rate in zip(names, rates, strict=True)
    ]
    return [*rows, Row("LLM.generate to diffusers' batch", {"ratio": Figure.ratio(*rates, at_least=1.0)})]


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _many(llm: Any) -> list[Row]:
    grown = [_growth(llm, count) for count in (AT_ONCE + 1, 8 * (AT_ONCE + 1))]
    states = max(most for _, most in grown)
    return [
        Row(
            f"{8 * (AT_ONCE + 1)} requests, {AT_ONCE + 1} at once",
            {
                "peak states": Figure.of([states], at_most=AT_ONCE + 1),
                "extra MiB over the requests at once": (grown[1][0] - grown[0][0]) / 2**20,
            },
        )
    ]


def _growth(llm: Any, count: int) -> tuple[int, int]:
    """Return the peak memory of this process in bytes and the largest number of states while ``count`` requests run."""
    engine, process = llm.llm_engine, psutil.Process()
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    for number in range(count):
        _add(engine, f"many-{number}", 4)
    most, states = 0, 0
    while engine.has_unfinished_requests():
        engine.step()
        most = max(most, process.memory_info().rss)
        kept = runner.input_batch.pooling_states.values()
        states = max(states, sum(hasattr(state, "mmout") for state in kept))
    return most, states
