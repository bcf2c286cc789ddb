"""Cost of guided requests, which generate whole media, and of the logits processor for unguided requests.

Two engines of one small model, one of them without the logits processor, run in this process on one core and take
turns. Seconds are CPU time, which other work on the machine changes little. Pictures of guided requests are compared
turns. Seconds are CPU time, which other work on the machine changes little. Pictures of guided requests are compared
with pictures of requests that restrict tokens to codes (``allowed_token_ids``); their decoder costs next to nothing.

``GUIDED_ROUNDS``, ``GUIDED_TOKENS`` (tokens of each text) and ``GUIDED_SIDE`` (rows and columns of codes) make shorter
runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.report import Figure, Row, setting
from benchmarks.token_model import WORDS, write_text_model

if TYPE_CHECKING:
    import torch

ROUNDS = int(setting("GUIDED_ROUNDS", "5"))
TOKENS = int(setting("GUIDED_TOKENS", "32"))
SIDE = int(setting("GUIDED_SIDE", "4"))
REQUESTS = 16
CODES = 4096
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
LAYOUT = {"modality": "image", "first": WORDS, "size": CODES, "grid": [SIDE, SIDE]}
ANSWERS = 100
ASKED = 0.98


class Grey:
    """A decoder that turns each code into a grey pixel."""

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return pixels [n, 1, rows, columns] of codes [n, rows, columns]."""
        return codes.float()[:, None] / (CODES - 1) * 2 - 1


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if hasattr(os, "sched_getaffinity"):
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(min(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as name:
        model = write_text_model(Path(name, "model"), vocab_size=WORDS + CODES, max_position_embeddings=256, **SMALL)
        guiding, plain = _engine(model, guides=True), _engine(model, guides=False)
        for llm in (guiding, plain):  # warm up
            _tokens_per_s(llm, _text())
        turns = [(_tokens_per_s(guiding, _text()), _tokens_per_s(plain, _text())) for _ in range(ROUNDS)]
        pictures = [(_tokens_per_s(guiding, _guided()), _tokens_per_s(guiding, _codes())) for _ in range(ROUNDS)]
        return [
            _row("text of unguided requests, with and without the processor", turns, at_least=ASKED),
            _row("pictures of guided requests and of requests restricted to codes", pictures),
            _whole(guiding),
        ]


def _engine(model: Path, *, guides: bool) -> Any:
    from vllm import LLM

    reason = None if guides else "the benchmark disables it"
    with patch("vllm_mmout.wings.tokens.guided.configure.why_not", lambda _: reason):
        llm = LLM(
            str(model),
            dtype="float32",
            gpu_memory_utilization=0.3,
            kv_cache_memory_bytes=256 << 20,
            distributed_executor_backend="uni",
            enforce_eager=True,
            enable_prefix_caching=False,
            additional_config={"mmout": {"output_processor": "vq_image", "layout": LAYOUT, "decoder": Grey()}},
        )
    assert bool(llm.llm_engine.model_config.logits_processors) == guides
    return llm


def _text() -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=TOKENS, ignore_eos=True, allowed_token_ids=list(range(WORDS)), seed=1)


def _codes() -> Any:
    from vllm import SamplingParams

    allowed = list(range(WORDS, WORDS + CODES))
    return SamplingParams(max_tokens=SIDE**2, ignore_eos=True, allowed_token_ids=allowed)


def _guided() -> Any:
    from vllm import SamplingParams

    from vllm_mmout import OutputParams

    return OutputParams(output="media", sampling=SamplingParams(max_tokens=SIDE**2, ignore_eos=True))


def _tokens_per_s(llm: Any, params: Any) -> float:
    started = time.process_time()
    results = llm.generate(["draw"] * REQUESTS, params, use_tqdm=False)
    return sum(len(result.outputs[0].token_ids) for result in results) / (time.process_time() - started)


def _row(name: str, turns: list[tuple[float, float]], at_least: float | None = None) -> Row:
    values, baselines = zip(*turns, strict=True)
    ratio = Figure.ratio(values, baselines, at_least=at_least)
    return Row(name, {"tokens/s": Figure.of(values), "baseline tokens/s": Figure.of(baselines), "ratio": ratio})


def _whole(llm: Any) -> Row:
    """Count the answers that are one whole picture."""
    from vllm import SamplingParams

    free = SamplingParams(max_tokens=SIDE**2, temperature=1.0, ignore_eos=True)
    whole_counts = []
    for params in (_guided(), free):
        results = llm.generate(["draw"] * ANSWERS, params, use_tqdm=False)
        media = [getattr(result, "error", None) is None and result.outputs[0].multimodal for result in results]
        whole_counts.append(sum(bool(pictures) and not pictures[0].partial for pictures in media))
    figures = {"whole pictures": whole_counts[0], "unguided whole pictures": whole_counts[1]}
    target = f"all {ANSWERS} guided answers are whole"
    return Row(f"{ANSWERS} answers at temperature 1", figures, asked=target, met=whole_counts[0] == ANSWERS)
