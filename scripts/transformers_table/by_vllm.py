# ruff: noqa: INP001 - scripts are no package
"""Compare what vLLM gives for a folder that is left to it with transformers."""

from __future__ import annotations

from typing import Any

import compared
import numpy as np

CLOSE = 1e-3
"""vLLM's kernels sum in another order, and through more layers than ours."""


def by_vllm(llm: Any, texts: list[str], cases: list[compared.Case]) -> str:
    """Return what vLLM serves the folder as, and whether its values are those of transformers."""
    task = llm.pooling_task
    if task is None:
        return "generates text"
    results: list[Any] = llm.encode(texts, pooling_task=task, use_tqdm=False)
    told = [_difference(task, one.outputs.data, case.raw) for one, case in zip(results, cases, strict=True)]
    differs = next(filter(None, told), "")
    return f"{task}, {differs}" if differs else f"{task}, equal"


def _difference(task: str, data: Any, raw: Any) -> str:
    """Return how one result differs, or "" if it does not."""
    told = np.asarray(data, np.float64)
    if task in ("classify", "token_classify"):
        if "logits" not in raw:
            return "transformers gives no logits"
        logits = raw["logits"][0]
        expected = [logits.softmax(-1), logits, logits.sigmoid()]
    else:
        hidden = raw["last_hidden_state"][0] if "last_hidden_state" in raw else None
        if hidden is None:
            return f"transformers gives {', '.join(raw)}"
        vectors = [hidden[0], hidden[-1], hidden.mean(0)]
        expected = [vector / vector.norm() for vector in vectors]
        if task == "token_embed":
            expected = [hidden / hidden.norm(dim=-1, keepdim=True)]
    shapes = {tuple(one.shape) for one in expected}
    if told.shape not in shapes:
        return f"shape {list(told.shape)}, not {list(shapes.pop())}"
    off = min(float(np.abs(told - one.numpy()).max()) for one in expected if tuple(one.shape) == told.shape)
    return "" if off <= CLOSE else f"differs by {off:.2g}"
