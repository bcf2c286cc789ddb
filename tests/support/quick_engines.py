"""Engines of this process whose own processes are forked from one that has imported vLLM, see `forked_python`.

What goes from one process to the other is what would go to one that is spawned, as vLLM does on CPUs, and nothing else
of this process is there. Only the imports, which take most of an engine's start, are made once. An engine's worker is
forked from the engine. The processes are no children of this one; `processes.descendants` lists them all the same.
"""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import contextmanager
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen

import forked_python
import pytest
import setproctitle
from processes import SPAWNED


class _Popen(popen_forkserver.Popen):
    """Starts a process by the fork server of the tests."""

    def _launch(self, process):
        pickled = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process._name), pickled)
            reduction.dump(process, pickled)
        finally:
            set_spawning_popen(None)
        self.sentinel, writing = forked_python.start_spawned(self._fds)
        sentinel_of_parent = os.dup(writing)
        self.finalizer = util.Finalize(self, util.close_fds, (sentinel_of_parent, self.sentinel))
        with os.fdopen(writing, "wb") as file:
            file.write(pickled.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)
        SPAWNED.append(self.pid)


class _Process(ForkServerProcess):
    """A process with the environment of the process that starts it, not with that of the fork server."""

    _Popen = staticmethod(_Popen)

    def start(self):
        self.environment = dict(os.environ)
        super().start()

    def run(self):
        setproctitle.getproctitle()  # finds its place in memory by the environment, before that is another one
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None
        super().run()


class _Context(ForkServerContext):
    Process = _Process


@contextmanager
def quick_engines():
    """Have vLLM start the processes of engines by the fork server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.v1.engine.utils.get_mp_context", _Context)
        yield
