"""Iterative models: an answer takes many steps, as in diffusion and flow matching, many requests in one batch.

An author writes ``begin``, ``step`` and ``finish``; each step of the engine is one of every request that runs, wherever
it is. A request is a prompt of as many tokens as it takes steps, and vLLM's scheduler gives it one a step.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

_PACKAGE = "vllm_mmout.wings.iterative"

WING = Wing(
    name="iterative",
    kinds=f"{_PACKAGE}.kind:ITERATIVE",
    folders=f"{_PACKAGE}.pipelines.folders:as_ours",
    hooks=f"{_PACKAGE}.hooks:STEP_HOOKS",
    routes=f"{_PACKAGE}.serving.extension:StepRoutes",
    testing={"check_iterative_model": f"{_PACKAGE}.checking:check_iterative_model"},
)
