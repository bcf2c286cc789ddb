"""The engine's core on a bound engine: it waits for all tiles of a batch before a step, and sleeps during it."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.core import EngineCoreProc

from vllm_mmout.engine.marker import BATCH

if TYPE_CHECKING:
    from vllm.v1.request import Request

WAITS_S = 0.05
"""Seconds that the core waits at most for what is left of a batch; messages of one batch come within a few ms."""
SPINS_S = 0.002
"""Seconds that the core looks again and again whether a worker has answered, before it waits to be woken."""


class BoundEngineCore(EngineCoreProc):
    """vLLM's core process, which would begin a step with the first message that comes."""

    mmout_due: dict[tuple[int, int], int]
    """Tiles of a batch that have not come, by client and batch."""
    mmout_until: float = 0.0
    """``time.monotonic()`` until which they are waited for."""

    def add_request(self, request: Request, request_wave: int = 0) -> None:
        """As vLLM's, and count the tiles of a batch."""
        params = request.pooling_params
        mark = (params.extra_kwargs or {}).get(BATCH) if params is not None else None
        if mark is not None:
            batch = (request.client_index, mark[0])
            if batch not in self.mmout_due:
                self.mmout_until = time.monotonic() + WAITS_S
            left = self.mmout_due.get(batch, mark[1]) - 1
            self.mmout_due[batch] = left
            if left <= 0:
                del self.mmout_due[batch]
        super().add_request(request, request_wave)

    def _process_input_queue(self) -> None:
        super()._process_input_queue()  # type: ignore[no-untyped-call]
        while self.mmout_due and self.is_running():
            left = self.mmout_until - time.monotonic()
            try:
                self._handle_client_request(*self.input_queue.get(timeout=max(left, 0.0)))
            except queue.Empty:
                self.mmout_due.clear()  # an aborted one does not come any more


def bind_core(core: Any) -> None:
    """Bind an engine core whose model has an output processor."""
    from vllm_mmout.engine.bind import derived
    from vllm_mmout.engine.binding import resolve_choice

    if core.vllm_config.model_config.runner_type != "pooling" or resolve_choice(core.vllm_config) is None:
        return
    rest_while_workers_compute(core.model_executor)
    if core.vllm_config.parallel_config.data_parallel_size > 1:  # the tiles of a batch go to several cores
        return
    core.mmout_due = {}
    core.__class__ = derived(BoundEngineCore, type(core))


def rest_while_workers_compute(executor: Any) -> None:
    """Wait for workers' answers asleep, where vLLM looks for them without a pause for up to a second.

    A step of ours takes as long as that, not some milliseconds as one token does: on a machine without a GPU the core's
    process would take a processor from those who read the tiles and write the result, and they one from the worker.
    """
    for answers in getattr(executor, "response_mqs", ()):
        answers._spin_condition.busy_loop_s = SPINS_S  # noqa: SLF001 - in the hook table
