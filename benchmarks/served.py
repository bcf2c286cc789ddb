"""Servers for benchmarks, which run the embedded model or another command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 60.0
EMBEDDED = ("-m", "vllm_mmout.cli", "serve", "water-index")
FLAGS = ("--gpu-memory-utilization", "0.3", "--distributed-executor-backend", "uni")


@contextmanager
def served(
    log: Path, command: Sequence[str] = EMBEDDED, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its port and process id.

    Args:
        log: The file that the server's output goes to.
        command: Arguments of the interpreter. Host, port and flags that keep the engine small are added.
        environment: Variables added to those of this process.

    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    flags = ("--host", HOST, "--port", str(port), *FLAGS)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command, *flags],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.5)
        yield port, process.pid
    finally:
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in started:  # left over if the server was stopped while it started
            if child.is_running():
                child.kill()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{port}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
