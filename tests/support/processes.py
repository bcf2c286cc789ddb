"""Processes that tests start: how they compute, and whether any is still running."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress

ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Entries of the environment with which an engine and plain PyTorch give the same bits: sums depend on the threads."""

PYTHONS_OWN = "resource_tracker"
"""Ends with the process that it belongs to, a moment later."""

VARIABLE = "MMOUT_TEST_STARTED_BY"


def new_mark():
    """Entries of the environment by which the processes of a test are known, those that they start among them."""
    return {VARIABLE: uuid.uuid4().hex}


SPAWNED = []
"""Ids of processes that the fork server has started for engines of this process."""


def descendants():
    """Return the processes below this one, those that the fork server has started for its engines among them."""
    import psutil

    found = psutil.Process().children(recursive=True)
    for pid in SPAWNED:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def left_running(mark):
    """Command lines of the processes with this mark that do not end within some seconds."""
    import psutil

    def marked():
        return [process for process in psutil.process_iter() if _environment(process).get(VARIABLE) == mark[VARIABLE]]

    return _not_ending(marked)


def left_of_session(leader):
    """Command lines of the processes of a session that do not end within some seconds."""
    import psutil

    return _not_ending(lambda: [process for process in psutil.process_iter() if _session(process) == leader])


def children_left():
    """Command lines of the processes below this one that do not end within some seconds."""
    return _not_ending(descendants)


def _not_ending(find, within_s=60.0):
    deadline = time.monotonic() + within_s
    while found := [line for line in map(_command, find()) if line and PYTHONS_OWN not in line]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def _session(process):
    """The id of its leader; none of a process that has ended."""
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _environment(process):
    import psutil

    try:
        return process.environ()
    except psutil.Error:  # it has ended, or is another user's
        return {}


def _command(process):
    """The command line; none of a process that has ended or is about to."""
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
