"""Times this package's entry point and hooks in every process that starts with this folder on its path.

Each time is written at once, as a line of ``$START_COST/PID``: what ran, seconds of wall clock, seconds of CPU. A
hook's time is net of the function of vLLM that it is put around.
"""  # noqa: INP001 - a folder for PYTHONPATH, not a package

from __future__ import annotations

import functools
import importlib.abc
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["START_COST"])
PACKAGE = "vllm_mmout"
HOOKS = "vllm_mmout.engine.hooks.wrappers"
inside: list[list[float]] = []
"""For each timed call that runs, the wall clock and CPU time spent in vLLM below it."""


def clock() -> tuple[float, float]:
    """Seconds of wall clock and of this thread's CPU."""
    return time.perf_counter(), time.thread_time()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Note the time inside a function, net of what ``untimed`` ones take below it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        inside.append([0.0, 0.0])
        wall, cpu = clock()
        try:
            return function(*args, **kwargs)
        finally:
            now, used = clock()
            below = inside.pop()
            with (FOLDER / str(os.getpid())).open("a") as file:
                file.write(f"{name} {now - wall - below[0]} {used - cpu - below[1]}\n")

    return wrapper


def untimed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the time inside a function out of that of the one that called it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        wall, cpu = clock()
        try:
            return function(*args, **kwargs)
        finally:
            now, used = clock()
            inside[-1][0] += now - wall
            inside[-1][1] += used - cpu

    return wrapper


def time_hooks(wrappers: ModuleType) -> None:
    """Put timers into what the hook table puts around vLLM's functions."""
    for name, make in list(vars(wrappers).items()):
        if getattr(make, "__module__", "") == HOOKS and "original" in getattr(make, "__annotations__", {}):
            setattr(wrappers, name, _timed_hook(name, make))


def _timed_hook(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda original: timed(name, make(untimed(original)))


class Timing(importlib.abc.MetaPathFinder):
    """Finds the module of the hooks and puts the timers in when it has been run."""

    found = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As Python's finders."""
        if name != HOOKS or self.found:
            return None
        self.found = True
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            time_hooks(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign] - of this one module's loader
        return spec


def load(entry_point: importlib.metadata.EntryPoint, *, original: Callable[..., Any]) -> Any:
    """Load an entry point; of ours, time the import and what vLLM then calls."""
    if not entry_point.value.startswith(PACKAGE):
        return original(entry_point)
    return timed("load()", timed("import", original)(entry_point))


importlib.metadata.EntryPoint.load = functools.partialmethod(  # type: ignore[assignment] - the way to reach each of them
    load, original=importlib.metadata.EntryPoint.load
)
sys.meta_path.insert(0, Timing())
