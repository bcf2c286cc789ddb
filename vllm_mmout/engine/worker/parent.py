"""End an engine's core when the process that started it is gone, which vLLM's own core does not notice."""

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
"""Seconds that a core may take to end by itself."""


def end_with_parent() -> None:
    """End this process when the process that started it ends, even if that is killed.

    This does nothing in a process that multiprocessing has not started, such as the user's own or an actor of Ray.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="mmout-parent", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    logging.getLogger("vllm.mmout").warning(
        "the process that started this engine (%s) is gone, and the engine ends", parent.pid
    )
    os.kill(os.getpid(), signal.SIGTERM)  # on which vLLM shuts a core down cleanly
    time.sleep(_ORDERLY_S)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)
