"""Ends an engine's core when the process that started it is gone, of which vLLM's core takes no notice."""

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
    """Have this process end with the one that started it, also where that was killed.

    An engine in a user's own process, or an actor of Ray's, has no such parent.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="mmout-parent", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    logging.getLogger("vllm.mmout").warning(
        "the process that started this engine (%s) is gone, and the engine ends", parent.pid
    )
    os.kill(os.getpid(), signal.SIGTERM)  # by which vLLM ends a core in order
    time.sleep(_ORDERLY_S)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)
