"""Servers that tests start as users do, ``vllm-mmout serve``, and end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_python
import httpx
from forked_python import Forked
from processes import PYTHONS_OWN, left_of_session, left_running, new_mark

COMMAND = ("-m", "vllm_mmout.cli", "serve")
SMALL = ("--gpu-memory-utilization", "0.3", "--distributed-executor-backend", "uni")
"""Keeps a server's engine small; what is given after it wins."""
START_S = 600.0
STOP_S = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    url: str
    """``http://127.0.0.1:PORT``, without a slash at the end."""
    pid: int
    """The process that was started; with one API server the one that answers."""
    log: Path
    """What it wrote to standard output and standard error."""
    process: subprocess.Popen[bytes] | Forked
    """Leads a session of its own, as a command of a terminal does."""

    def kill(self) -> None:
        """End all of it by SIGKILL, the API server first: engines do not see when that is gone."""
        _kill(self.process)

    @contextmanager
    def stopped_engine(self) -> Iterator[Callable[[Callable[[], bool]], None]]:
        """Stop the processes of the engine for the block, so that no job can end within it, however fast jobs are.

        Gives a function that has the engine go on until a condition is true.
        """
        import psutil

        processes = psutil.Process(self.pid).children(recursive=True)
        engine = [process for process in processes if PYTHONS_OWN not in " ".join(process.cmdline())]
        assert engine, "the server has no engine in a process of its own"

        def run_until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + START_S
            for process in engine:
                process.resume()
            while not condition():
                assert time.monotonic() < deadline, "the engine did not get so far"
            for process in engine:
                process.suspend()

        for process in engine:
            process.suspend()
        try:
            yield run_until
        finally:
            for process in engine:
                process.resume()


@contextmanager
def served(
    model: str | Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    fresh: bool = False,
) -> Iterator[Server]:
    """Serve a model until the block ends; then no process of it may be left.

    Args:
        model: a folder or the name of an embedded model.
        flags: further flags of ``vllm-mmout serve``.
        environment: entries beside those of this process.
        command: another command of the interpreter that takes a model and such flags.
        fresh: start the server in a fresh interpreter, as users do, which takes several times as long; else fork it.

    """
    with tempfile.TemporaryDirectory(prefix="served-") as folder:
        port, log, mark = free_port(), Path(folder, "server.log"), new_mark()
        arguments = [*command, str(model), "--host", "127.0.0.1", "--port", str(port), *SMALL, *flags]
        entries = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO", **(environment or {}), **mark}
        with log.open("wb") as file:
            output = {"stdout": file, "stderr": file}
            start = _start if fresh else forked_python.start
            process = start(arguments, env=entries, **output)
        server = Server(f"http://127.0.0.1:{port}", process.pid, log, process)
        try:
            _wait_until_up(server, process)
            yield server
        finally:
            stop(process)
            # The system shows a forked process with the environment of its fork server.
            left = [*left_running(mark), *left_of_session(process.pid)]
            assert not left, f"still running: {left}\n{log.read_text(errors='replace')}"


def _start(arguments: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, start_new_session=True, **settings)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[bytes] | Forked, by: int = signal.SIGTERM) -> int:
    """End a server by a signal, if it has not ended, and return its exit status.

    Args:
        process: of a `Server`.
        by: ``SIGINT`` goes to all its processes, as a terminal sends it.

    """
    if process.poll() is None:
        if by == signal.SIGINT:
            os.killpg(process.pid, by)
        else:
            process.send_signal(by)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _kill(process)
    return int(process.returncode)


def _wait_until_up(server: Server, process: subprocess.Popen[bytes] | Forked) -> None:
    deadline = time.monotonic() + START_S
    while True:
        ended = process.poll()
        text = server.log.read_text(errors="replace")
        assert ended is None, f"the server ended with {ended}:\n{text}"
        assert time.monotonic() < deadline, f"the server did not start:\n{text}"
        try:
            if httpx.get(f"{server.url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.2)


def _kill(process: subprocess.Popen[bytes] | Forked) -> None:
    import psutil

    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    for one in below:
        with suppress(psutil.NoSuchProcess):
            if PYTHONS_OWN not in " ".join(one.cmdline()):  # it ends after the others, and clears their memory
                one.kill()
    process.wait(STOP_S)
    _, alive = psutil.wait_procs(below, timeout=STOP_S)
    assert not alive
