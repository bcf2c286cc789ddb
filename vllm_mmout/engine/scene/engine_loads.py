"""EngineLoads, which chooses the engine for the next batch among the engines behind a frontend."""

from __future__ import annotations


class EngineLoads:
    """Counter of the tiles in flight in each engine, which chooses the engine of each batch. Not thread-safe.

    A batch is sent to one engine as a whole, because a step waits for all tiles of its batch.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        """Start with idle engines.

        Args:
            count: number of engines.
            first: index of the engine that gets the first batch. Frontends of the same engines begin with different
                engines.

        """
        self.tiles = [0] * count
        self._next = first

    @property
    def idle(self) -> int:
        """Number of engines without a tile in flight."""
        return self.tiles.count(0)

    def take(self, tiles: int) -> int:
        """Return the index of the engine for a batch of ``tiles``, and count the tiles.

        This is the engine with the fewest tiles. Engines with equally few tiles take turns.
        """
        count = len(self.tiles)
        engine = min(range(count), key=lambda index: (self.tiles[index], (index - self._next) % count))
        self._next = engine + 1
        self.tiles[engine] += tiles
        return engine

    def give(self, engine: int) -> None:
        """Remove a tile that was answered or aborted from the count of an engine."""
        self.tiles[engine] -= 1
