"""Profiles every thread of every process that starts with this folder on its path, while a flag file exists.

``sys.setprofile`` is put in place at the interpreter's start and in each thread that begins, because Python before 3.12
cannot reach threads that run already. Calls count only while the file ``$PROFILED/on`` exists. Each process answers its
appearance with ``PID.ready`` and its removal with ``PID.json``: the functions that were called, by thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

FOLDER = Path(os.environ["PROFILED"])
calls = defaultdict(set)
"""Thread to the code objects that were called in it while the flag was up."""
profiled = set()
"""Threads in which the profile function is in place."""
recording = False


def record(frame, event, argument):
    if recording and event == "call":
        calls[threading.get_ident()].add(frame.f_code)


def begin(frame, event, argument):
    """First event of a thread."""
    profiled.add(threading.get_ident())
    sys.setprofile(record)


def report():
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    hooks = sys.modules.get("vllm_mmout.engine.hooks.install")
    return {
        "calls": {
            threads.get(ident, f"ended {ident}"): sorted(
                {f"{code.co_filename}:{code.co_qualname}" for code in set(codes)}
            )
            for ident, codes in list(calls.items())
        },
        "unprofiled": [threads.get(ident, f"foreign {ident}") for ident in set(sys._current_frames()) - profiled],
        "hooks": sorted(hooks._installed) if hooks else [],
        "modules": sorted(name for name in sys.modules if name.startswith("vllm_mmout")),
    }


def watch():
    global recording  # noqa: PLW0603 - one switch for the process
    profiled.add(threading.get_ident())  # this thread alone goes without
    flag = FOLDER / "on"
    while True:
        while not flag.exists():
            time.sleep(0.02)
        recording = True
        (FOLDER / f"{os.getpid()}.ready").touch()
        while flag.exists():
            time.sleep(0.02)
        recording = False
        unfinished = FOLDER / f"{os.getpid()}.part"
        unfinished.write_text(json.dumps(report()))
        unfinished.rename(FOLDER / f"{os.getpid()}.json")
        calls.clear()


def start():
    """Start the watcher, which is not profiled itself, then profile this thread and all that begin later."""
    threading.setprofile(None)
    threading.Thread(target=watch, name="watch", daemon=True).start()
    threading.setprofile(begin)
    sys.setprofile(begin)


start()
os.register_at_fork(after_in_child=start)
