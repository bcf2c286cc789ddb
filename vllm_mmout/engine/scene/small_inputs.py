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
"""Longest time in seconds that an idle engine waits for a block of tiles because another input is being read. An
input that takes longer to read, or many inputs one after the other, cannot stop a scene."""


class SmallInputs:
    """Record of the small inputs of an ``AsyncLLM``, which decides when scenes send blocks of tiles. Not thread-safe.

    Args:
        wake: function that makes scenes send their next blocks.

    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._small_blocks_until = 0.0
        self._unsent = 0
        """Number of new requests whose inputs are being read, or that have not been sent to an engine yet."""
        self._answered_at = 0.0
        """Time of the latest answer to a block of tiles, in seconds of ``time.monotonic``."""

    def arrived(self) -> None:
        """Make scenes send smaller blocks for `SMALL_BLOCKS_S` seconds, because a small input has arrived."""
        self._small_blocks_until = time.monotonic() + SMALL_BLOCKS_S

    def block_answered(self) -> None:
        """Record the time of an engine's answer to a block of tiles."""
        self._answered_at = time.monotonic()

    @contextmanager
    def holding_blocks(self) -> Iterator[Callable[[], None]]:
        """Have scenes send no blocks while a new request is read, so that it finds an idle engine when it is sent.

        The ``with`` statement gives a function. Call it when the request was sent, or turned out to be a scene. Scenes
        send blocks again from then on, and in any case `HOLD_S` seconds after an engine's answer to the block before.
        """
        self._unsent += 1
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._unsent -= 1
                self._wake()

        try:
            yield release
        finally:
            release()

    @property
    def gives_way(self) -> bool:
        """Whether a small input has arrived within the last `SMALL_BLOCKS_S` seconds."""
        return time.monotonic() < self._small_blocks_until

    @property
    def hold_s(self) -> float:
        """Seconds for which scenes must not send blocks. 0 or less if they may send them now."""
        return self._answered_at + HOLD_S - time.monotonic() if self._unsent else 0.0
