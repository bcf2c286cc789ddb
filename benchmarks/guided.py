"""Whole media by guided requests: what unguided requests lose beside the logits processor, and what guiding costs.

Two engines of one small model run in this process on one core, one of them without the processor, and take turns;
seconds are those of the processor, which other work on the machine lengthens little. Pictures of guided requests stand
beside those of requests that are given the codes alone (``allowed_token_ids``); their decoder costs next to nothing.
Then a hundred answers of random weights at temperature 1, guided and free.

``GUIDED_ROUNDS``, ``GUIDED_TOKENS`` (of each text) and ``GUIDED_SIDE`` (codes of a row, and rows) make shorter runs.
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
    """A decoder: each code is a pixel."""

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes [n, rows, columns] to pixels [n, 1, rows, columns]."""
        return codes.float()[:, None] / (CODES - 1) * 2 - 1


def run() -> list[Row]:
    """Measure."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if hasattr(os, "sched_getaffinity"):
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(min(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as name:
        model = write_text_model(Path(name, "model"), vocab_size=WORDS + CODES, max_position_embeddings=256, **SMALL)
        guiding, plain = _engine(model, guides=True), _engine(model, guides=False)
        for llm in (guiding, plain):  # what only the first ones cost
            _tokens_per_s(llm, _text())
        turns = [(_tokens_per_s(guiding, _text()), _tokens_per_s(plain, _text())) for _ in range(ROUNDS)]
        pictures = [(_tokens_per_s(guiding, _guided()), _tokens_per_s(guiding, _codes())) for _ in range(ROUNDS)]
        return [
            _row("text of unguided requests, beside the same without the processor", turns, at_least=ASKED),
            _row("pictures of guided requests, beside those of the codes alone", pictures),
            _whole(guiding),
        ]


def _engine(model: Path, *, guides: bool) -> Any:
    from vllm import LLM

    reason = None if guides else "a benchmark leaves it out"
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
    ones, others = zip(*turns, strict=True)
    ratio = Figure.ratio(ones, others, at_least=at_least)
    return Row(name, {"tokens/s": Figure.of(ones), "beside it tokens/s": Figure.of(others), "ratio": ratio})


def _whole(llm: Any) -> Row:
    """How many answers are one whole picture."""
    from vllm import SamplingParams

    free = SamplingParams(max_tokens=SIDE**2, temperature=1.0, ignore_eos=True)
    found = []
    for params in (_guided(), free):
        results = llm.generate(["draw"] * ANSWERS, params, use_tqdm=False)
        media = [getattr(result, "error", None) is None and result.outputs[0].multimodal for result in results]
        found.append(sum(bool(one) and not one[0].partial for one in media))
    figures = {"whole pictures": found[0], "of free ones": found[1]}
    asked = f"all {ANSWERS} guided ones"
    return Row(f"{ANSWERS} answers at temperature 1", figures, asked=asked, met=found[0] == ANSWERS)
