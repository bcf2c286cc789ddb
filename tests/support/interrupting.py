"""Ctrl-C at chosen moments."""

from __future__ import annotations

import ctypes
import linecache
import signal
import sys
import threading
import time
from pathlib import Path

import vllm_mmout

ENGINE = Path(vllm_mmout.__file__).parent / "engine"


def interrupted_after(seconds, call):
    """Whether a real SIGINT ended a call; one that comes when the call is over is waited for and does not count."""
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    try:
        timer.start()
        try:
            call()
        except KeyboardInterrupt:
            return True
        timer.cancel()
        timer.join()
        time.sleep(0.001)  # returns through the kernel, which delivers what is pending
    except KeyboardInterrupt:
        pass
    return False


def forget_handled_exceptions():
    """Have this thread handle no exception any more.

    CPython goes on with one as handled whose ``except`` a trace function has interrupted at its very end: all that are
    raised later would be told as raised "during handling" of that one.
    """
    forget = ctypes.pythonapi.PyErr_SetHandledException
    forget.argtypes, forget.restype = [ctypes.py_object], None
    forget(None)


class InterruptAtLine:
    """Raises KeyboardInterrupt at the n-th line of ours that the main thread runs; once, as one Ctrl-C does.

    Args:
        line: which, from 0.
        files: names of our modules in ``engine``.

    """

    def __init__(self, line, files):
        self.left = line
        self.files = {str(file) for file in ENGINE.rglob("*.py") if file.name in files}
        self.fired = None

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.call)

    def __exit__(self, *_):
        sys.settrace(self.before)

    @staticmethod
    def of_a_lock(frame):
        """Whether the line takes or frees a lock of C, where Python handles no signal."""
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith("with self.")

    def call(self, frame, event, arg):
        return self.line if frame.f_code.co_filename in self.files else None

    def line(self, frame, event, arg):
        if event == "line" and self.fired is None and not self.of_a_lock(frame):
            self.left -= 1
            if self.left < 0:
                self.fired = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.line
