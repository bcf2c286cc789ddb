"""EngineLoads: which of the engines behind one frontend gets the next batch."""

from __future__ import annotations


class EngineLoads:
    """Tiles in flight in each engine; a batch goes whole to one, since a step waits for all tiles of its batch.

    Used from one thread.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        """Begin with no tiles; of ``count`` engines ``first`` gets the first batch, so that frontends begin apart."""
        self.tiles = [0] * count
        self._next = first

    @property
    def idle(self) -> int:
        """How many engines have no tile in flight."""
        return self.tiles.count(0)

    def take(self, tiles: int) -> int:
        """The engine for a batch: the one with the fewest tiles; of several such the next in turn."""
        count = len(self.tiles)
        engine = min(range(count), key=lambda one: (self.tiles[one], (one - self._next) % count))
        self._next = engine + 1
        self.tiles[engine] += tiles
        return engine

    def give(self, engine: int) -> None:
        """One tile of an engine was answered, or is not waited for any more."""
        self.tiles[engine] -= 1
