"""Memory that is freed and soon needed again: kept by processes of ours, where glibc would give it back to the system.

It gives large blocks back at once, and has them cleared by the system again, page by page, for the next step or tile.
Where the C library is another one nothing changes.
"""

from __future__ import annotations

import ctypes
import multiprocessing

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_NEVER = 1 << 30
_BLOCK = 32 << 20
"""Bytes of a block above which it goes back at once, the most that glibc takes; segments and tiles are smaller."""
_FREE = 128 << 20
"""Bytes at the end of a heap above which they go back."""


def keep_freed_memory() -> None:
    """Keep all that a step has used for the next one, in a worker's own process.

    Of a small model on tiles of 512 x 512 pixels that is a tenth of its time.
    """
    if multiprocessing.parent_process() is not None:  # else the user's own process, and memory
        _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _NEVER})


def keep_freed_blocks() -> None:
    """Keep what a tile has used for the next one, in a server's process; whole pictures go back as before.

    Reading tiles of 512 x 512 pixels in six bands that takes a fifth less of a processor.
    """
    _set({_M_MMAP_THRESHOLD: _BLOCK, _M_TRIM_THRESHOLD: _FREE})


def _set(options: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
