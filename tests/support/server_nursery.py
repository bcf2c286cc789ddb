"""A process that has imported all that servers need, and forks them: `nursery` runs ``python server_nursery.py``.

That reads lines of JSON, ``{"log": FILE, "arguments": [...]}`` with the arguments of ``vllm-mmout serve``, and answers
each with the id of a process, which is a server as that command starts it, in a session of its own. Only the imports,
which take most of a server's start, are made once: the API server, the engine and its worker are processes of each
server. These have what the API server had opened before them: the port on which it listens, nothing of its results.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from serving import SMALL, START_S, free_port

IMPORTED = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.utils",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm_mmout.engine.plugin",
    "vllm_mmout.serving.launch",
    "vllm_mmout.serving.plugin",
)
SPAWNING = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
"""Modules of vLLM that start processes by ``get_mp_context``; on CPUs these import everything again."""


@dataclass(frozen=True)
class Forked:
    """A server that answers."""

    url: str
    pid: int
    processes: list[object]
    """It, its engine and the engine's worker."""

    def kill(self):
        """End all of it by SIGKILL, the API server first: engines do not see when that is gone."""
        import psutil

        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(self.processes, timeout=60)
        assert not alive


@contextmanager
def nursery(folder):
    """Start one; gives a function that makes a server of arguments, as a context manager that kills it in the end.

    Args:
        folder: for temporary files, and the log of all servers.

    """
    import psutil

    log = Path(folder, "servers.log")
    command = [sys.executable, __file__]
    environment = {**os.environ, "TMPDIR": str(folder), "VLLM_LOGGING_LEVEL": "INFO"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"

        @contextmanager
        def forked(model, *flags):
            port = free_port()
            arguments = [model, "--host", "127.0.0.1", "--port", str(port), *SMALL, *flags]
            print(json.dumps({"log": str(log), "arguments": arguments}), file=process.stdin, flush=True)
            leader = psutil.Process(int(process.stdout.readline()))
            url = f"http://127.0.0.1:{port}"
            try:
                _wait_until_up(url, leader, log)
                server = Forked(url, leader.pid, [leader, *leader.children(recursive=True)])
            except BaseException:
                for one in [*leader.children(recursive=True), leader]:
                    one.kill()
                raise
            try:
                yield server
            finally:
                server.kill()

        yield forked
        process.stdin.close()


def _wait_until_up(url, leader, log):
    import httpx

    deadline = time.monotonic() + START_S
    while True:
        assert leader.is_running(), f"the server ended:\n{log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text(errors='replace')}"
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.1)


def main():
    """Fork a server for each line."""
    modules = {name: importlib.import_module(name) for name in IMPORTED}
    for name in SPAWNING:
        modules[name].get_mp_context = lambda: multiprocessing.get_context("fork")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # servers that end need nobody who waits for them
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            serve(modules["vllm_mmout.serving.launch"].launch, **asked)
        print(pid, flush=True)  # noqa: T201


def serve(launch, log, arguments):
    """Be a server."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, nothing), (1, file), (2, file)):
            os.dup2(source, target)
        launch(arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - of a process that ends here
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
