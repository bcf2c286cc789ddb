"""The engine core of a bound engine. It waits for all tiles of a batch before a step, and sleeps during the step."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.v1.engine.core import EngineCoreProc

from vllm_mmout.engine.binding import rebase, resolve_choice
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.engine.trace import Trace
from vllm_mmout.engine.wire import BATCH
from vllm_mmout.engine.worker.parent import end_with_parent
from vllm_mmout.engine.worker.resting import rest_while_workers_compute
from vllm_mmout.engine.worker.step_limit import StepLimit

if TYPE_CHECKING:
    from vllm.v1.request import Request

WAITS_S = 0.05
"""Longest wait of the core for the rest of a batch, in seconds. The messages of a batch arrive within a few ms."""


@dataclass(slots=True)
class DueTiles:
    """Tiles that the core waits for before its next step."""

    due: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of tiles that have not arrived yet, by client index and batch number."""
    until: float = 0.0
    """Time when the core stops waiting for the tiles, by ``time.monotonic()``."""


class BoundEngineCore(EngineCoreProc):
    """Engine core that waits for all tiles of a batch. vLLM's own core begins a step at the first message."""

    mmout: DueTiles

    def add_request(self, request: Request, request_wave: int = 0) -> None:
        """Add a request as vLLM does, and count the tiles of its batch that are still missing."""
        params = request.pooling_params
        mark = (params.extra_kwargs or {}).get(BATCH) if params is not None else None
        if mark is not None:
            batch = (request.client_index, mark[0])
            if batch not in self.mmout.due:
                self.mmout.until = time.monotonic() + WAITS_S
            left = self.mmout.due.get(batch, mark[1]) - 1
            self.mmout.due[batch] = left
            if left <= 0:
                del self.mmout.due[batch]
        super().add_request(request, request_wave)

    def _process_input_queue(self) -> None:
        super()._process_input_queue()  # type: ignore[no-untyped-call]
        while self.mmout.due and self.is_running():
            left = self.mmout.until - time.monotonic()
            try:
                self._handle_client_request(*self.input_queue.get(timeout=max(left, 0.0)))
            except queue.Empty:
                self.mmout.due.clear()  # the missing tiles may have been aborted and would never arrive


def bind_core(core: Any) -> None:
    """Bind an engine core if its model has an output processor; leave other cores unchanged."""
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
    core.mmout = DueTiles()
    rebase(core, BoundEngineCore)


def trace_steps(core: Any, trace: Trace) -> None:
    """Record each step of a core in the trace."""
    step = core._process_engine_step  # noqa: SLF001 - in the hook table

    def traced() -> Any:
        began = time.monotonic()
        stepped = step()
        trace.add("step", began, time.monotonic())
        return stepped

    core._process_engine_step = traced  # noqa: SLF001 - as above
