# ruff: noqa: INP001 - the scripts are not a package
"""Comparison of vLLM's results with transformers, for a folder that is left to vLLM."""

from __future__ import annotations

from typing import Any

import compared
import numpy as np

CLOSE = 1e-3
"""Tolerance. vLLM's kernels sum in another order, and through more layers, than this package."""


def by_vllm(llm: Any, texts: list[str], cases: list[compared.Case]) -> str:
    """Return the task that vLLM serves the folder with, and whether its values equal the values of transformers."""
    task = llm.pooling_task
    if task is None:
        return "generates text"
    results: list[Any] = llm.encode(texts, pooling_task=task, use_tqdm=False)
    differences = [
        _difference(task, output.outputs.data, case.raw) for output, case in zip(results, cases, strict=True)
    ]
    differs = next(filter(None, differences), "")
    return f"{task}, {differs}" if differs else f"{task}, equal"


def _difference(task: str, data: Any, raw: Any) -> str:
    """Return the difference of a result from transformers, or "" if there is none."""
    values = np.asarray(data, np.float64)
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
    shapes = {tuple(array.shape) for array in expected}
    if values.shape not in shapes:
        return f"shape {list(values.shape)}, not {list(shapes.pop())}"
    error = min(float(np.abs(values - array.numpy()).max()) for array in expected if tuple(array.shape) == values.shape)
    return "" if error <= CLOSE else f"differs by {error:.2g}"
