"""End the process of an engine core if a step of the model hangs.

vLLM waits at most ``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`` for workers in processes of their own. On one device the
worker usually runs in the core's process, and vLLM waits for it without a limit.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from vllm_mmout.log import logger

_CHECKS_PER_LIMIT: Final = 4
"""Number of times that a running step is checked within its time limit. If the limit is longer than 4 seconds, the step
is checked every second instead."""
_LONGEST_PAUSE_S: Final = 1.0
_STACKS_S: Final = 5.0
"""Time in seconds for the workers to write their stack traces before they are killed."""


class StepLimit:
    """Time limit for the steps of an engine core, checked in a separate thread.

    Args:
        seconds: longest time that a step may take.
        end: function that is called with a message if a step takes longer, by default `end_process`.

    """

    def __init__(self, seconds: float, end: Callable[[str], None] | None = None) -> None:
        self._seconds = seconds
        self._end = end or end_process
        self._began: float | None = None

    def watch(self, core: Any) -> None:
        """Time the steps of an engine core, and start the thread that ends the core when a step takes too long."""
        step = core._process_engine_step  # noqa: SLF001 - in the hook table

        def limited() -> Any:
            self._began = time.monotonic()
            try:
                return step()
            finally:
                self._began = None

        core._process_engine_step = limited  # noqa: SLF001 - as above
        threading.Thread(target=self._look, name="mmout-step-limit", daemon=True).start()

    def _look(self) -> None:
        """Check the duration of the current step at regular intervals. End the engine core if a step takes too long."""
        pause = min(self._seconds / _CHECKS_PER_LIMIT, _LONGEST_PAUSE_S)
        while True:
            time.sleep(pause)
            began = self._began
            if began is not None and time.monotonic() - began > self._seconds:
                self._end(
                    f"a step of the model takes longer than {self._seconds:g} s (step_timeout_s), and the engine ends,"
                    " since all requests wait for this step; the stacks of its threads follow"
                )
                return


def end_process(reason: str) -> None:
    """Write the stack traces of this process and its workers to standard error, then kill them all.

    A hanging thread cannot be stopped, and would block a clean shutdown. A hanging worker would keep its inherited
    handles open: the server's port, and the pipe by which vLLM notices that this process has ended.
    """
    threading.Thread(target=_exit_soon, daemon=True).start()  # the writes below may block
    with suppress(Exception):
        logger.critical("%s", reason)
        for handler in [*logger.handlers, *logging.getLogger("vllm").handlers]:
            handler.flush()
    with suppress(Exception):
        faulthandler.dump_traceback()
    workers = multiprocessing.active_children()
    for worker in workers:
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGABRT)  # its faulthandler then writes the stacks, see `BoundWorker`
    deadline = time.monotonic() + _STACKS_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        worker.kill()
    os._exit(1)


def _exit_soon() -> None:
    """Kill this process and its workers after a delay, so that a blocked write of the log cannot keep them alive."""
    time.sleep(2 * _STACKS_S)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)
