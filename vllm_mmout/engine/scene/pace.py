"""Choose how many tiles an engine gets at once, from the time that it took for earlier tiles of the scene."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

BLOCK_S = 0.05
"""Target time in seconds for computing one block of tiles. Other requests wait until the block is computed."""
OUTPUT_BYTES = 64 << 20
"""Largest size in bytes of the output that an engine returns for one block of tiles. It limits the tiles per block."""
BLOCK_DIVISOR = 4
"""Divisor that makes blocks of tiles smaller while requests for small inputs arrive, so that these requests wait less.
"""
_GROWTH = 4
"""Growth limit. The next block of tiles is at most this many times as large as the largest block so far."""
_MEMORY = 0.7
"""Decay factor of the moving averages. A new measurement multiplies the weight of earlier data by this factor."""
_LONGEST_BLOCKS = 10
"""Upper limit of the time recorded for one block, as a multiple of `BLOCK_S`. Longer times are cut to this limit."""
_MOST_KEPT = 64
"""Largest number of `Pace` objects (measurements of similar scenes) that `Paces` keeps."""


@dataclass(slots=True)
class Pace:
    """Measured time and output size per tile, from which `block_size` computes the size of the next block of tiles.

    Scenes with equal options, tile sizes and dtypes share the measurements. The first of these scenes starts with a
    block of one tile, since the size of its results is unknown. Later blocks are at most `_GROWTH` times as large as
    the largest block so far.
    """

    _largest: int = 0
    """Largest number of tiles that the engine has processed in one block so far."""
    _seconds: float = 0.0
    _tile_bytes: float = 0.0
    """Largest output size per tile so far, in bytes. The size may depend on the number of boxes in a tile."""
    _tiles: float = 0.0

    def block_size(self, *, gives_way: bool = False) -> int:
        """Return the largest number of tiles for the next block. It is smaller while requests for small inputs arrive.

        ``gives_way`` is True while such requests, for inputs that are not cut into tiles, arrive.
        """
        most = max(1, _GROWTH * self._largest)
        if self._tiles:
            most = min(most, int(BLOCK_S * self._tiles / max(self._seconds, 1e-9)))
            most = min(most, int(OUTPUT_BYTES / max(self._tile_bytes, 1.0)))
        return max(1, most // BLOCK_DIVISOR if gives_way else most)

    def add(self, tiles: int, seconds: float, nbytes: int) -> None:
        """Record that the engine took ``seconds`` for a block of ``tiles`` tiles and returned ``nbytes`` bytes."""
        # A block may wait long while its engine is paused, and later scenes should not be slow because of that.
        self._seconds = _MEMORY * self._seconds + min(seconds, _LONGEST_BLOCKS * BLOCK_S)
        self._tile_bytes = max(self._tile_bytes, nbytes / tiles)
        self._tiles = _MEMORY * self._tiles + tiles
        self._largest = max(self._largest, tiles)


class Paces:
    """Collection of `Pace` measurements. Scenes with equal options, tile sizes and dtypes share a `Pace`.

    Only the first of these scenes starts with small blocks, which take a GPU nearly as long as large blocks.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Pace] = {}
        self._lock = threading.RLock()  # written in C, so that an interrupt cannot leave it held

    def of(self, kind: Hashable) -> Pace:
        """Return the `Pace` that is stored under the key ``kind``. Create a new `Pace` if the key is missing.

        The key consists of a scene's options, tile size and dtype. Only the `_MOST_KEPT` keys used last are kept.
        """
        with self._lock:
            self._kept[kind] = pace = self._kept.pop(kind, None) or Pace()
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return pace
