"""EngineLoads: chooses which of the engines behind one frontend gets the next batch."""

from __future__ import annotations


class EngineLoads:
    """Number of tiles in flight in each engine. Used from one thread.

    A batch goes to one engine as a whole, since a step waits for all tiles of its batch.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        """Start with idle engines.

        Args:
            count: number of engines.
            first: index of the engine that gets the first batch; frontends of the same engines begin with others.

        """
        self.tiles = [0] * count
        self._next = first

    @property
    def idle(self) -> int:
        """Number of engines without a tile in flight."""
        return self.tiles.count(0)

    def take(self, tiles: int) -> int:
        """Return the engine with the fewest tiles for a batch of ``tiles``, the next in turn of several such."""
        count = len(self.tiles)
        engine = min(range(count), key=lambda index: (self.tiles[index], (index - self._next) % count))
        self._next = engine + 1
        self.tiles[engine] += tiles
        return engine

    def give(self, engine: int) -> None:
        """Count one tile of an engine as answered, or as one that nobody waits for any more."""
        self.tiles[engine] -= 1
