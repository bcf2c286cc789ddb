"""A process that samples the memory of another process and its descendants: proportional set size plus tmpfs.

``python -m benchmarks.process_memory PID --apart PID ... --before BYTES`` samples PID and its descendants until its
input ends. It leaves out itself, and the processes after ``--apart`` with their descendants. Each line of input names a
phase that begins, and is confirmed with a line. At the end, it prints the figures of all phases as JSON.

The proportional set size counts a page that n processes share as 1/n, so sums count nothing twice. (Only while a
process is forking is it counted twice, and scenes start no processes.)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.phases import PhasedProcess

PERIOD_S = 0.02
MIB = 1 << 20
_FIELDS = {"Pss:": "pss", "Pss_Anon:": "anonymous", "Pss_File:": "files"}


def memory_of(process: int) -> dict[str, int]:
    """Return the bytes of a process's proportional set size and of its parts, or nothing if the process has ended."""
    sizes = {}
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, value, *_ = line.split()
            if name in _FIELDS:
                sizes[_FIELDS[name]] = 1024 * int(value)
    except OSError:
        return {}
    return sizes


def tmpfs_used() -> int:
    """Return the bytes used in all file systems in memory."""
    used = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind not in ("tmpfs", "ramfs"):
            continue
        try:
            state = os.statvfs(mount)
            used[Path(mount).stat().st_dev] = (state.f_blocks - state.f_bfree) * state.f_frsize
        except OSError:  # hidden under another mount, or owned by another user
            continue
    return sum(used.values())


def family(root: int, apart: Iterable[int]) -> set[int]:
    """Return a process and its descendants, without the processes of ``apart`` and their descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # the process has ended
                continue
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    members, queue, excluded = set(), [root], set(apart)
    while queue:
        process = queue.pop()
        if process not in excluded:
            members.add(process)
            queue += children.get(process, [])
    return members


class MemorySampler(PhasedProcess):
    """A context manager for a process that samples the memory of this process and its descendants.

    Args:
        apart: Processes whose memory is not counted, such as the engine's.
        before: The value of ``tmpfs_used()`` before anything was started, in bytes.

    """

    def __init__(self, apart: Iterable[int], before: int) -> None:
        numbers = [str(process) for process in apart]
        command = ["benchmarks.process_memory", str(os.getpid()), "--before", str(before)]
        super().__init__([*command, "--apart", *numbers])

    def figures(self) -> dict[str, dict[str, float]]:
        """End the sampling, and return the figures of `_summary` for each phase, in MiB."""
        figures: dict[str, dict[str, float]] = self.measured()
        return figures


def _summary(samples: list[dict[str, float]], seconds: float) -> dict[str, float]:
    """Return a phase's sample with the largest sum, its median sum, its number of samples and its seconds."""
    most = max(samples, key=lambda sample: sample["sum"])
    return {
        **most,
        "median": statistics.median(sample["sum"] for sample in samples),
        "samples": len(samples),
        "seconds": seconds,
    }


def _sample(root: int, apart: set[int], before: int) -> dict[str, float]:
    """Return the current memory of a process and its descendants in MiB, and their number."""
    totals: dict[str, float] = dict.fromkeys(_FIELDS.values(), 0)
    processes = family(root, apart)
    for process in processes:
        for name, value in memory_of(process).items():
            totals[name] += value / MIB
    tmpfs = (tmpfs_used() - before) / MIB
    return {"sum": totals["pss"] + tmpfs, **totals, "tmpfs": tmpfs, "processes": len(processes)}


def main() -> None:
    """Sample until the input ends, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.process_memory")
    parser.add_argument("root", type=int)
    parser.add_argument("--apart", type=int, nargs="*", default=[])
    parser.add_argument("--before", type=int, default=0)
    options = parser.parse_args()
    apart = {*options.apart, os.getpid()}
    phases: dict[str, Any] = {}
    times: dict[str, float] = {}
    now: list[str] = []
    ended = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            now[:] = [line.strip()]
            print(line.strip(), flush=True)
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    while not ended.is_set():
        started = time.monotonic()
        if now:
            phase = now[0]
            phases.setdefault(phase, []).append(_sample(options.root, apart, options.before))
            times[phase] = times.get(phase, 0) + max(PERIOD_S, time.monotonic() - started)
        ended.wait(max(0.0, PERIOD_S - (time.monotonic() - started)))
    print(json.dumps({phase: _summary(samples, times[phase]) for phase, samples in phases.items()}), flush=True)


if __name__ == "__main__":
    main()
