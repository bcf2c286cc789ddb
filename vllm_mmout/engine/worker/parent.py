"""End an engine core whose parent process has died, because vLLM's own core does not notice the death."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_ORDERLY_S: Final = 20.0
"""Time in seconds for a clean shutdown of the engine core, after which the process is killed."""


def end_with_parent() -> None:
    """End this process when its parent process ends, even if the parent is killed.

    This does nothing in a process that multiprocessing did not start, such as the user's own process or a Ray actor.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="mmout-parent", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    logging.getLogger("vllm.mmout").warning(
        "the process that started this engine (%s) is gone, and the engine ends", parent.pid
    )
    os.kill(os.getpid(), signal.SIGTERM)  # makes vLLM shut the core down cleanly
    time.sleep(_ORDERLY_S)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)
