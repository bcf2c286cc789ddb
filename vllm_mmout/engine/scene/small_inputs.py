"""Give small inputs priority over the tiles of scenes. A small input needs a single forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SMALL_BLOCKS_S: Final = 1.0
"""Time in seconds for which scenes send smaller blocks of tiles after a small input has arrived. An engine then
answers the small input sooner."""
HOLD_S: Final = 0.02
"""Longest time in seconds for which scenes hold back their blocks of tiles while new requests are being read.

If requests are still being read after this time, scenes hold back blocks again when an engine has answered a block.
"""
READ_S: Final = 0.05
"""Longest time in seconds after the arrival of a request for which scenes hold back blocks of tiles.

The time is enough to read a local file. During a longer wait, such as a download, engines would be idle.
"""


class SmallInputs:
    """Record of the small inputs of an ``AsyncLLM``. The record tells scenes when to hold back blocks of tiles.

    It is not thread-safe.

    Args:
        wake: function that makes scenes send their next blocks.

    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._small_blocks_until = 0.0
        self._unsent: dict[object, float] = {}
        """Arrival time of each new request that was not sent to an engine yet. Each key is a placeholder object."""
        self._held_since = 0.0
        """Time, by ``time.monotonic()``, when the latest hold began. Scenes may hold back blocks of tiles for `HOLD_S`
        seconds from then on."""

    def arrived(self) -> None:
        """Make scenes send smaller blocks for `SMALL_BLOCKS_S` seconds, because a small input has arrived."""
        self._small_blocks_until = time.monotonic() + SMALL_BLOCKS_S

    def block_answered(self) -> None:
        """Record that an engine has answered a block of tiles. Scenes may then hold back blocks again for new requests.

        A hold that has not ended yet is not prolonged.
        """
        now = time.monotonic()
        if now >= self._held_since + HOLD_S:
            self._held_since = now

    @contextmanager
    def holding_blocks(self) -> Iterator[Callable[[], None]]:
        """Make scenes hold back blocks of tiles while a new request is read. The request then finds an idle engine.

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
        """Number of seconds for which scenes must still hold back blocks of tiles. With 0, scenes may send blocks."""
        until = min(max(self._unsent.values(), default=0.0) + READ_S, self._held_since + HOLD_S)
        return max(0.0, until - time.monotonic()) if self._unsent else 0.0

    @property
    def gives_way(self) -> bool:
        """Whether scenes give way to small inputs. True for `SMALL_BLOCKS_S` seconds after a small input arrives."""
        return time.monotonic() < self._small_blocks_until
