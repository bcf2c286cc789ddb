"""StepLimit: ends an engine's core if a step hangs, as vLLM does if worker processes do not answer in time.

vLLM waits ``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`` for workers that are processes of their own. On one device the worker
is usually part of the core's process, and vLLM waits for it without a limit.
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

_LOOKS: Final = 4
"""Checks of a running step within its limit."""
_LONGEST_PAUSE_S: Final = 1.0
_STACKS_S: Final = 5.0
"""Seconds that workers have to write their stacks."""


class StepLimit:
    """Time limit of the steps of one core, watched from a thread of its own.

    Args:
        seconds: time that a step may take.
        end: called with a message if a step takes longer; by default `end_process`.

    """

    def __init__(self, seconds: float, end: Callable[[str], None] | None = None) -> None:
        self._seconds = seconds
        self._end = end or end_process
        self._began: float | None = None

    def watch(self, core: Any) -> None:
        """Watch a core's steps from now on."""
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
        """Check the running step until it exceeds the limit, then end the core."""
        pause = min(self._seconds / _LOOKS, _LONGEST_PAUSE_S)
        while True:
            time.sleep(pause)
            began = self._began
            if began is not None and time.monotonic() - began > self._seconds:
                self._end(
                    f"a step of the model takes longer than {self._seconds:g} s (step_timeout_s), and the engine ends,"
                    " since all requests wait for it; the stacks of its threads follow"
                )
                return


def end_process(reason: str) -> None:
    """End this process and its workers at once, with the stacks of all of them on standard error.

    A thread that hangs cannot be ended, and would block a clean shutdown. A worker that hangs would keep what it
    inherited, such as the server's port and the pipe by which vLLM hears that this process has ended.
    """
    threading.Thread(target=_exit_soon, daemon=True).start()  # what is written below may block
    with suppress(Exception):
        logger.critical("%s", reason)
        for handler in [*logger.handlers, *logging.getLogger("vllm").handlers]:
            handler.flush()
    with suppress(Exception):
        faulthandler.dump_traceback()
    workers = multiprocessing.active_children()
    for worker in workers:
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGABRT)  # at which its faulthandler writes, see `BoundWorker`
    deadline = time.monotonic() + _STACKS_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        worker.kill()
    os._exit(1)


def _exit_soon() -> None:
    """End this process and its workers although its log cannot be written."""
    time.sleep(2 * _STACKS_S)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)
