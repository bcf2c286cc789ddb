"""Engines of this process whose own processes are forked from one that has imported vLLM: Python's fork server.

What goes from one process to the other is what would go to one that is spawned, as vLLM does on CPUs, and nothing else
of this process is there. Only the imports, which take most of an engine's start, are made once. An engine's worker is
forked from the engine.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess

import pytest
import setproctitle

IMPORTED = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker")


class _Process(ForkServerProcess):
    """Has the environment of whoever starts it, not that of the fork server."""

    def start(self):
        self.environment = dict(os.environ)
        super().start()

    def run(self):
        setproctitle.getproctitle()  # finds its place in memory by the environment, before that is another one
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None
        executors = sys.modules["vllm.v1.executor.multiproc_executor"]
        executors.get_mp_context = lambda: multiprocessing.get_context("fork")
        super().run()


class _Context(ForkServerContext):
    Process = _Process


def start_fork_server():
    """Start it before it is needed, where a test counts processes."""
    _Context().set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()


@contextmanager
def quick_engines():
    """Have vLLM start the processes of engines that way."""
    context = _Context()
    context.set_forkserver_preload(list(IMPORTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: context)
        yield
