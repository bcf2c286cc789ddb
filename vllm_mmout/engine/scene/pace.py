"""Choose the number of tiles in a scene's next block, from how long the engine took for earlier blocks."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_S = 0.05
"""Time in seconds that an engine should take for a block of tiles. Other requests that arrive meanwhile wait this long.
"""
ANSWER_BYTES = 64 << 20
"""Upper bound for the size of a block's result in bytes. Blocks are made small enough to stay below it."""
SHARE_BESIDE_SINGLES = 4
"""Divisor of a block's size while small inputs, which are not cut into tiles, arrive. They then wait less."""
_MEMORY = 0.7
"""Factor that multiplies the weight of earlier measurements at each new measurement."""


@dataclass(slots=True)
class Pace:
    """Measured seconds and bytes per tile of a scene, from which the size of its next block of tiles is chosen.

    Each scene starts with a block of one tile, since its tiles and results may differ in size from other scenes. A
    block has at most twice as many tiles as the largest block so far.
    """

    _largest: int = 0
    """Largest number of tiles in a block that was answered."""
    _seconds: float = 0.0
    _bytes: float = 0.0
    _tiles: float = 0.0

    def block_size(self, *, gives_way: bool = False) -> int:
        """Return the largest number of tiles for the next block. It is smaller if ``gives_way`` is True.

        Scenes give way while small inputs, which are not cut into tiles, arrive.
        """
        most = max(1, 2 * self._largest)
        if self._tiles:
            most = min(most, int(BLOCK_S * self._tiles / max(self._seconds, 1e-9)))
            most = min(most, int(ANSWER_BYTES * self._tiles / max(self._bytes, 1.0)))
        return max(1, most // SHARE_BESIDE_SINGLES if gives_way else most)

    def add(self, tiles: int, seconds: float, nbytes: int) -> None:
        """Record the answer to a block: its number of tiles, the seconds that it took, and its size in bytes."""
        self._seconds = _MEMORY * self._seconds + seconds
        self._bytes = _MEMORY * self._bytes + nbytes
        self._tiles = _MEMORY * self._tiles + tiles
        self._largest = max(self._largest, tiles)
