"""Python programs forked from a process that has imported vLLM, which spares each of them ten seconds of imports.

`run` and `start` are for tests what ``subprocess.run([sys.executable, ...])`` and ``subprocess.Popen`` are. They ask
the fork server, ``python forked_python.py SOCKET OWNER``: a process that imports vLLM and nothing of this package, and
forks a child for each connection to its Unix socket. All workers of pytest share one fork server. `start_server` or
the first call starts it; it ends when the process OWNER does.

A forked program differs from a fresh interpreter in this: vLLM's modules are in ``sys.modules``, the environment as
the system shows it (``/proc``) is that of the fork server, and libraries that read the environment while they are
imported have read that of the fork server. Tests of what an import does start a fresh interpreter.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from contextlib import ExitStack, suppress
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path

from processes import ONE_THREAD

IMPORTED = (
    "vllm.distributed.device_communicators.shm_broadcast",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.platforms.cpu",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.core",
    "vllm.v1.engine.utils",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
)
"""Modules of vLLM alone: each program decides whether it loads this package."""
SPINNING_S = 0.02
"""Seconds for which a process of an engine asks again and again for the next message before it sleeps until one comes.

vLLM's second, after each step, takes a core from the tests.
"""
SPAWNING = ("vllm.v1.engine.coordinator", "vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
"""Modules of vLLM that start processes by ``get_mp_context``; on CPUs these processes would import everything again."""
SOCKET = "MMOUT_TEST_FORK_SERVER"
"""Variable of the environment with the socket's path; `conftest.py` sets it."""
OWNER = "MMOUT_TEST_FORK_SERVER_OWNER"
"""Variable with the process id of the owner, the first process of the test run."""


class Forked:
    """A forked process, with the attributes and methods of `subprocess.Popen` that tests use."""

    def __init__(self, connection):
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid, self.returncode = int(self._answers.readline()), None

    def poll(self):
        """Return the exit status, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """Wait for the end of the process, and return its exit status."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(arguments, *, env=None, cwd=None, stdin=None, stdout=None, stderr=None):
    """Fork a process that runs what ``python ARGUMENT...`` would run, as the leader of a session of its own.

    Args:
        arguments: "-m", a module and its arguments; "-c", code and arguments; or a script and its arguments. "-W" and
            a filter may come first.
        env: the environment as a whole; None: that of this process.
        cwd: the working directory; None: that of this process.
        stdin: an open file; None: the null device.
        stdout: the same for the output.
        stderr: the same for errors.

    """
    program = {
        "arguments": [os.fspath(argument) for argument in arguments],
        "environment": dict(os.environ if env is None else env),
        "cwd": os.path.abspath(cwd or "."),  # noqa: PTH100 - links stay as they are
    }
    connection = _connected()
    with open(os.devnull, "r+b") as null:  # noqa: PTH123
        files = [null if file is None else file for file in (stdin, stdout, stderr)]
        socket.send_fds(connection, [b"\0"], [file.fileno() for file in files])
    connection.sendall(json.dumps(program).encode() + b"\n")
    return Forked(connection)


def run(arguments, *, env=None, cwd=None, input=None, timeout=1200, check=False):  # noqa: A002 - as of subprocess.run
    """Run a program as `start` does, and return a `subprocess.CompletedProcess` with what it wrote, as text."""
    with ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        stdin.write(input or "")
        stdin.seek(0)
        process = start(arguments, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            status = process.wait(timeout)
        finally:
            process.send_signal(signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        done = subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())
    if check:
        done.check_returncode()
    return done


def start_spawned(files):
    """Fork a process for `multiprocessing`, which reads from a pipe what it is to run.

    Args:
        files: descriptors that the process inherits; it finds their numbers by ``get_inherited_fds()``.

    Returns:
        The descriptor from which the process id can be read, then the exit status, both as `multiprocessing` writes
        them; and the descriptor to which the pickled process is written.

    """
    answers, answering = os.pipe()
    reading, writing = os.pipe()
    with _connected() as connection:
        socket.send_fds(connection, [b"\1"], [reading, answering, resource_tracker.getfd(), *files])
    os.close(reading)
    os.close(answering)
    return answers, writing


def start_server():
    """Start the fork server unless it runs, and wait until it is ready."""
    _connected().close()


def _connected():
    """Return a connection to the fork server, which is started if no worker has started it."""
    path = os.environ[SOCKET]
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        with open(f"{path}.lock", "w") as lock:  # noqa: PTH123
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection.connect(path)  # another worker was quicker
            except OSError:
                owner = os.environ[OWNER]
                environment = {**os.environ, **ONE_THREAD, "VLLM_LOGGING_LEVEL": "INFO"}
                command = [sys.executable, __file__, path, owner]
                subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True)
                connection.connect(path)
    return connection


def main(path, owner):
    """Serve forked processes until the owner ends. The call returns in the first process when the server is ready."""
    ready, writing = os.pipe()
    if os.fork():  # so that the server is no child of the worker that happened to start it
        os.close(writing)
        os._exit(0 if os.read(ready, 1) else 1)
    os.setsid()
    modules = {name: importlib.import_module(name) for name in IMPORTED}
    modules["vllm.distributed.device_communicators.shm_broadcast"].SpinCondition.__init__.__defaults__ = (SPINNING_S,)
    for name in SPAWNING:
        modules[name].get_mp_context = lambda: multiprocessing.get_context("fork")
    with suppress(ImportError):  # 0.31 has the launcher elsewhere
        # A server that ends reads the command of another process on its port. Forked engines inherit the port, and one
        # that ends at this moment has no command any more.
        launcher = importlib.import_module("vllm.entrypoints.launchers.launcher")
        launcher.find_process_using_port = lambda _: None
    platform = modules["vllm.platforms.cpu"].CpuPlatform
    platform.register_triton_kernel_overrides()  # once for all engines
    platform.register_triton_kernel_overrides = lambda *_: None
    gc.collect()
    gc.freeze()  # each collection of a program would look through all of vLLM
    gc.unfreeze = lambda: None  # vLLM calls it when an engine ends, then collects: more than a second in each process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait for programs
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        os.write(writing, b"\0")
        os.close(writing)
        listening.settimeout(1)
        while _is_alive(int(owner)):
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    _serve(connection)
                connection.close()
    os._exit(0)  # an orderly end would take seconds


def _is_alive(process):
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def _serve(connection):
    """Fork the process that a connection asks for; this process waits for its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.setblocking(True)
    kind, files, *_ = socket.recv_fds(connection, 1, 64)
    if kind == b"\0":
        _fork_program(connection, files)
    elif kind == b"\1":
        connection.close()
        _fork_spawned(*files)
    os._exit(0)


def _fork_spawned(reading, answering, tracker, *inherited):
    """Fork a process for `multiprocessing`, as its own fork server does it."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(answering)
        resource_tracker._resource_tracker._fd = tracker
        forkserver._forkserver._inherited_fds = list(inherited)
        os._exit(spawn._main(reading, os.dup(reading)))
    for file in (reading, tracker, *inherited):
        os.close(file)
    with suppress(OSError):
        forkserver.write_signed(answering, pid)
    _, ended = os.waitpid(pid, 0)
    with suppress(OSError):
        forkserver.write_signed(answering, os.waitstatus_to_exitcode(ended))


def _fork_program(connection, files):
    """Fork a program, tell its process id, and tell its exit status when it has ended."""
    with connection.makefile("r") as lines:
        program = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run_program(files, **program)
    for file in files:
        os.close(file)
    with suppress(OSError):  # nobody may be left that asks
        connection.sendall(f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    with suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(ended)}\n".encode())


def _run_program(files, arguments, environment, cwd):
    """Run a program in this process, which then ends as an interpreter does."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    resource_tracker.ensure_running()  # as of a server that spawns; one of the engine's own ends with it too early
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    is_module, is_code = arguments[0] == "-m", arguments[0] == "-c"
    sys.argv = arguments[1:] if is_module else ["-c", *arguments[2:]] if is_code else arguments
    sys.path[0] = str(Path.cwd()) if is_module else "" if is_code else str(Path(arguments[0]).resolve().parent)
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    status = 0
    try:
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif is_code:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:  # noqa: BLE001 - the last there is
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(*sys.exc_info())
    _exit(status)


def _exit(status):
    """End as an interpreter does, but for the modules: to clear those of vLLM would take seconds."""
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
