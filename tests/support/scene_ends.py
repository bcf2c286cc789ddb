"""What scenes must not leave behind; scenes with one bad tile; processors that misbehave as they join."""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import water_oracle
from files_open import open_below
from processors_for_tests import RELEASE
from scenes_for_tests import pixels

from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.processors import Parts

DEADLINE = 60
"""Seconds that no step of these tests takes, on whatever machine."""

BAD = Window(32, 32, 32, 32)
"""Of a scene of 75 x 90 pixels in tiles of 32, the fifth of nine."""
BAD_TILE = f"tile 5 of 9 ({BAD})"
_ROW, _COL = 33, 35
"""A pixel of that tile alone."""
_PATTERN = np.tile([0, 1, 1], 7)
"""Classes from there on; a scene at random has them once in two million."""


def bad_tile(seed=0):
    """A scene that `is_bad` and ``ReduceRaisesForBright`` know one tile of."""
    array = pixels(seed)
    row = array[:, _ROW, _COL : _COL + len(_PATTERN)]
    row[1], row[4] = np.where(_PATTERN, 5000, 3000), np.where(_PATTERN, 3000, 5000)
    array[1, _ROW + 1, _COL], array[4, _ROW + 1, _COL] = 9000, 0
    return array


def is_bad(ids):
    """Whether a tile's classes are those of the bad one."""
    height, width = ids.shape[-2:]
    row, col = _ROW - BAD.row, _COL - BAD.col
    found = np.asarray(ids).reshape(height, width)[row : row + 1, col : col + len(_PATTERN)]
    return np.array_equal(found, _PATTERN[np.newaxis])


class Left:
    """Looks for what a scene left: threads, open files, temporary files, requests in the engine."""

    def __init__(self, *folders):
        self.folders = [*folders, Path(tempfile.gettempdir())]
        self.before = self.files()
        self.open_before = self.open_files()

    def files(self):
        """Temporary files in the folders."""
        return {str(file) for folder in self.folders if folder.is_dir() for file in folder.glob(".*.part")}

    def open_files(self):
        """Open files below the folders."""
        return open_below(*self.folders)

    def all(self, router, but=()):
        """What is left, by name, after the time in which threads end; nothing for a scene that ended well.

        Args:
            router: the engine's output processor.
            but: names of what may be left.

        """
        deadline = time.monotonic() + 30
        while (held := self._now(router, but)) and time.monotonic() < deadline:
            gc.collect()  # tracebacks keep what a test had
            time.sleep(0.02)
        return held

    def _now(self, router, but):
        held = {
            "threads": threads(),
            "files": sorted(self.files() - self.before),
            "open files": [file for file in self.open_files() if file not in self.open_before],
            **water_oracle.leftovers(router),
        }
        return {name: value for name, value in held.items() if value and name not in but}


def threads():
    """Threads of scenes that run, once those that are at their end have ended."""
    ours = [thread for thread in threading.enumerate() if thread.name in ("mmout-read", "mmout-join")]
    for thread in ours:
        thread.join(0.2)
    return [thread for thread in ours if thread.is_alive()]


@contextmanager
def settings(router, **changes):
    """Give later calls of ``generate`` other settings within the block; the decode limit holds for all calls."""
    before, limit = router.binding, router.pool.timeout
    decided = {name: value for name, value in changes.items() if name in ("max_tiles", "max_in_flight")}
    others = msgspec.structs.replace(before.settings, **changes)
    router.binding = dataclasses.replace(before, settings=others, **decided)
    router.pool.timeout = others.decode_timeout_s
    try:
        yield
    finally:
        router.binding, router.pool.timeout = before, limit


def raises(self, parts, params):
    """As most faults of authors."""
    next(parts)
    raise LookupError("no assemble today")


def exits(self, parts, params):
    """As a library that thinks it is a program."""
    next(parts)
    raise SystemExit(3)


def interrupts(self, parts, params):
    """As none should."""
    raise KeyboardInterrupt


def returns_none(self, parts, params):
    """As one who forgets."""
    for _ in parts:
        pass


def hangs(self, parts, params):
    """On its second part."""
    next(parts)
    next(parts)
    RELEASE.wait(DEADLINE)
    return parts.mosaic(params)


def swallows(self, parts, params):
    """What its parts raise, but for the one that ends a loop."""
    while True:
        try:
            next(parts)
        except StopIteration:
            return "swallowed"
        except Exception:  # noqa: BLE001, S112 - as authors do
            continue


def swallows_everything(self, parts, params):
    """Even what is no exception, ten times."""
    for _ in range(10):
        with suppress(BaseException):
            list(parts)
    return "swallowed"


def gives_no_raster(self, parts, params):
    """In the place of what can be saved."""
    return sum(1 for _ in parts)


def indices(self, parts, params):
    """Of any processor: which tiles came; a single input as it is."""
    if not isinstance(parts, Parts):
        return next(parts).output
    return sorted(part.index for part in parts)


def wait_for(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
