"""Timer of the package's entry point and hooks, in each process that starts with this folder on its path.

Each time is written at once as a line of ``$START_COST/PID``: the name, seconds of wall clock and seconds of CPU. A
hook's time excludes the function of vLLM that it wraps.
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
"""Seconds of wall clock and CPU spent in vLLM inside each timed call that is running."""


def clock() -> tuple[float, float]:
    """Return the seconds of wall clock and of this thread's CPU."""
    return time.perf_counter(), time.thread_time()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to record its time, without the ``untimed`` functions that it calls."""

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
    """Wrap a function so that its time is not counted in the timed function that calls it."""

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
    """Add timers to the wrappers that the hook table puts around vLLM's functions."""
    for name, make in list(vars(wrappers).items()):
        if getattr(make, "__module__", "") == HOOKS and "original" in getattr(make, "__annotations__", {}):
            setattr(wrappers, name, _timed_hook(name, make))


def _timed_hook(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda original: timed(name, make(untimed(original)))


class Timing(importlib.abc.MetaPathFinder):
    """A finder of the hooks' module, which adds the timers after the module has run."""

    found = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec for the hooks' module the first time, and None for other modules."""
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

        spec.loader.exec_module = exec_module  # type: ignore[method-assign] - only of this module's loader
        return spec


def load(entry_point: importlib.metadata.EntryPoint, *, original: Callable[..., Any]) -> Any:
    """Load an entry point. For ours, time the import and the function that vLLM then calls."""
    if not entry_point.value.startswith(PACKAGE):
        return original(entry_point)
    return timed("load()", timed("import", original)(entry_point))


importlib.metadata.EntryPoint.load = functools.partialmethod(  # type: ignore[assignment] - reaches every entry point
    load, original=importlib.metadata.EntryPoint.load
)
sys.meta_path.insert(0, Timing())
