"""A process that has imported all that servers need, and forks them: `Nursery` runs ``python server_nursery.py``.

That reads lines of JSON, the arguments of `serve`, and answers each with the id of a process, which is a server as its
command starts it, in a session of its own. Only the imports, which take most of a server's start, are made once: the
API server, the engine and its worker are processes of each server. These have what the API server had opened before
them: the port on which it listens, nothing of its results. Whoever asks which processes listen there, as is done of
several API servers, starts them as users do.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import resource_tracker
from pathlib import Path

IMPORTED = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.core",
    "vllm.v1.engine.utils",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
)
"""Of vLLM alone: whether a server loads anything of this package is its own affair."""
SPAWNING = ("vllm.v1.engine.coordinator", "vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
"""Modules of vLLM that start processes by ``get_mp_context``; on CPUs these import everything again."""


class Forked:
    """A process that a nursery has forked, with what `subprocess.Popen` has; the nursery's own process waits for it."""

    def __init__(self, pid, status):
        self.pid, self.returncode = pid, None
        self._status = status

    def poll(self):
        """The exit status, None while it runs."""
        if self.returncode is None and self._status.exists():
            self.returncode = int(self._status.read_text())
        return self.returncode

    def wait(self, timeout=None):
        """Wait for its end; gives the exit status."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"server {self.pid}", timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """A context within which servers are forked.

    Args:
        environment: entries beside those of this process, for what is read when libraries are loaded.

    """

    def __init__(self, environment=None):
        self._environment = environment or {}

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="nursery-")
        self._count = 0
        environment = {**os.environ, **self._environment, "VLLM_LOGGING_LEVEL": "INFO"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
        if self._process.stdout.readline() != "ready\n":
            self.__exit__()
            raise RuntimeError("the nursery did not start")
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def start(self, arguments, log, environment, cwd=None):
        """Fork a process that is ``python -m MODULE ...``.

        Args:
            arguments: "-m", the module, and the arguments of its command.
            log: the file for standard output and standard error.
            environment: all of it.
            cwd: the folder in which it runs, whose modules go before others; None: that of the tests.

        """
        self._count += 1
        status = Path(self._folder.name, str(self._count))
        asked = {"arguments": arguments, "log": str(log), "environment": environment, "cwd": cwd and str(cwd)}
        asked["status"] = str(status)
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return Forked(int(self._process.stdout.readline()), status)


def main():
    """Fork a server for each line."""
    modules = {name: importlib.import_module(name) for name in IMPORTED}
    for name in SPAWNING:
        modules[name].get_mp_context = lambda: multiprocessing.get_context("fork")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those end that wait for servers
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        if os.fork() == 0:
            wait_for_server(**json.loads(line))
    os._exit(0)  # nothing of this process needs an orderly end, which takes seconds


def wait_for_server(status, **asked):
    """Fork a server, tell its id, and write its exit status into a file when it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        serve(**asked)
    print(pid, flush=True)  # noqa: T201
    _, ended = os.waitpid(pid, 0)
    unfinished = Path(f"{status}-unfinished")
    if unfinished.parent.exists():  # else nobody asks any more
        unfinished.write_text(str(os.waitstatus_to_exitcode(ended)))
        unfinished.rename(status)
    os._exit(0)


def serve(arguments, log, environment, cwd):
    """Be a server, and end as an interpreter does."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, nothing), (1, file), (2, file)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(file)
    os.chdir(cwd or ".")
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    resource_tracker.ensure_running()  # as of a server that spawns; one of the engine's own ends with it too early
    sys.argv, sys.path[0] = arguments[1:], str(Path.cwd())
    sys.path[1:1] = [entry for entry in environment["PYTHONPATH"].split(os.pathsep) if entry not in sys.path]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
