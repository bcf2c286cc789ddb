"""Tiles a second: ``LLM.generate`` (class ids) against ``LLM.encode`` (raw logits), one engine, in turns.

The caller of ``encode`` has to turn the raw logits into class ids; the time of that is counted too.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.report import Figure, Row
from vllm_mmout import embedded_model

TILES = 64
SIZE = 512
PLOTTED = ("tiles/s",)


def run(rounds: int = 5) -> list[Row]:
    """Run the benchmark and return its rows."""
    from vllm import LLM

    llm: Any = LLM(embedded_model("water-index"), gpu_memory_utilization=0.3, distributed_executor_backend="uni")
    tiles = list(np.random.default_rng(1).integers(0, 10_000, (TILES, 6, SIZE, SIZE), dtype=np.uint16))
    walls: dict[str, list[float]] = {"generate": [], "encode": []}
    masks: dict[str, list[Any]] = {}
    for _ in range(rounds):
        started = time.perf_counter()
        masks["generate"] = [result.outputs.array[0] for result in llm.generate(tiles, use_tqdm=False)]
        walls["generate"].append(time.perf_counter() - started)
        started = time.perf_counter()
        prompts = [{"prompt_token_ids": [1], "multi_modal_data": {"image": tile}} for tile in tiles]
        raw = llm.encode(prompts, pooling_task="plugin", use_tqdm=False)
        masks["encode"] = [output.outputs.data.argmax(0).numpy().astype(np.uint8) for output in raw]
        walls["encode"].append(time.perf_counter() - started)
    for ours, theirs in zip(masks["generate"], masks["encode"], strict=True):
        assert np.array_equal(ours, theirs)
    llm.llm_engine.engine_core.shutdown()
    speeds = {name: Figure.of(TILES / wall for wall in of_name) for name, of_name in walls.items()}
    ratio = Figure.ratio(walls["encode"], walls["generate"])
    return [
        Row("class ids by generate", {"tiles/s": speeds["generate"], "ratio to encode": ratio}),
        Row("class ids by encode and argmax", {"tiles/s": speeds["encode"]}),
    ]
