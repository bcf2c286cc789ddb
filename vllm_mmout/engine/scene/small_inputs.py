"""Let inputs of one forward pass go before the tiles of scenes that use the same engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SMALL_BLOCKS_S: Final = 1.0
"""Time in seconds after the arrival of a small input. During this time, scenes send smaller blocks of tiles, so that
the engine answers the small input sooner. A small input needs a single forward pass."""
HOLD_S: Final = 0.02
"""Longest time in seconds that scenes hold blocks back because other inputs are being read. Then an engine must answer
a block before scenes hold blocks back again. Many inputs one after the other therefore cannot stop a scene."""
READ_S: Final = 0.05
"""Time in seconds after the arrival of a request. Scenes hold blocks back for the request only during this time, which
is enough to read a file on this machine. During a longer wait, such as a download, engines would be idle for nothing.
"""


class SmallInputs:
    """Record of the small inputs of an ``AsyncLLM``, which decides when scenes send blocks of tiles. Not thread-safe.

    Args:
        wake: function that makes scenes send their next blocks.

    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._small_blocks_until = 0.0
        self._unsent: dict[object, float] = {}
        """Time of arrival of each new request whose input is being read, or that was not sent to an engine yet."""
        self._held_since = 0.0
        """Time when the latest hold began: at the arrival of a request, or at an engine's answer after a hold."""

    def arrived(self) -> None:
        """Make scenes send smaller blocks for `SMALL_BLOCKS_S` seconds, because a small input has arrived."""
        self._small_blocks_until = time.monotonic() + SMALL_BLOCKS_S

    def block_answered(self) -> None:
        """Hold blocks back again if requests are still being read and the latest hold has ended."""
        now = time.monotonic()
        if now >= self._held_since + HOLD_S:
            self._held_since = now

    @contextmanager
    def holding_blocks(self) -> Iterator[Callable[[], None]]:
        """Have scenes send no blocks while a new request is read, so that it finds an idle engine when it is sent.

        The ``with`` statement gives a function. Call it when the request was sent, or turned out to be a scene. Scenes
        send blocks again from then on, and in any case after `HOLD_S` or `READ_S`.
        """
        request, now = object(), time.monotonic()
        if not self._unsent:
            self._held_since = now
        self._unsent[request] = now

        def release() -> None:
            if self._unsent.pop(request, None) is not None:
                self._wake()

        try:
            yield release
        finally:
            release()

    @property
    def hold_s(self) -> float:
        """Seconds for which scenes must not send blocks, or 0 if they may send them now."""
        until = min(max(self._unsent.values(), default=0.0) + READ_S, self._held_since + HOLD_S)
        return max(0.0, until - time.monotonic()) if self._unsent else 0.0

    @property
    def gives_way(self) -> bool:
        """Whether a small input has arrived within the last `SMALL_BLOCKS_S` seconds."""
        return time.monotonic() < self._small_blocks_until
