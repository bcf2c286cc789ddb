"""Serve iterative models, such as diffusion and flow matching models, which compute a result in many steps.

An author writes ``begin``, ``step`` and ``finish``. Each step of the engine runs one step of every running request, no
matter which step each request has reached. A request's prompt has as many tokens as the request has steps, and vLLM's
scheduler schedules one of these tokens per engine step.
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
