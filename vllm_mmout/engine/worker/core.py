"""Set up an engine core for output processors: limit the time of a step, trace its stages, and avoid busy waiting."""

from __future__ import annotations

import time
from typing import Any

from vllm import envs

from vllm_mmout.engine.binding import resolve_choice
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.engine.trace import Trace
from vllm_mmout.engine.worker.parent import end_with_parent
from vllm_mmout.engine.worker.pinning import pin_on_arrival
from vllm_mmout.engine.worker.resting import rest_while_workers_compute
from vllm_mmout.engine.worker.step_limit import StepLimit


def bind_core(core: Any) -> None:
    """Set up an engine core if its model has output processors. Leave other cores unchanged."""
    choice = resolve_choice(core.vllm_config)
    if choice is None:
        return
    end_with_parent()
    if core.vllm_config.model_config.runner_type != "pooling":
        return
    settings = EngineSettings.from_mapping(choice.settings)
    if settings.trace is not None:
        trace_steps(core, Trace(settings.trace))
    StepLimit(settings.step_timeout_s or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).watch(core)
    rest_while_workers_compute(core.model_executor)
    pin_on_arrival(core)


def trace_steps(core: Any, trace: Trace) -> None:
    """Record the time of each step of an engine core in the trace file."""
    step = core._process_engine_step  # noqa: SLF001 - in the hook table

    def traced() -> Any:
        began = time.monotonic()
        stepped = step()
        trace.add("step", began, time.monotonic())
        return stepped

    core._process_engine_step = traced  # noqa: SLF001 - as above
