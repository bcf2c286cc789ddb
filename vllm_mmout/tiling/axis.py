"""Axis: one axis of a scene, cut where the tiles that count change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.tiling.weights import Blend, axis_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Axis:
    """Intervals along one axis, in each of which the same tiles count."""

    starts: tuple[int, ...]
    """First pixel of each tile."""
    intervals: tuple[slice, ...]
    """From the first pixel to the last."""
    spans: tuple[range, ...]
    """The intervals, by number, in which each tile counts."""
    covers: tuple[int, ...]
    """How many tiles count in each interval."""
    weights: tuple[NDArray[np.float64], ...]
    """Of each tile, over all its pixels."""

    @classmethod
    def cut(cls, starts: Sequence[int], tile: int, size: int, blend: Blend) -> Axis:
        """Cut an axis; the arguments are those of `axis_weights`."""
        weights = axis_weights(starts, tile, size, blend)
        runs = []
        for start, weight in zip(starts, weights, strict=True):
            counting = np.flatnonzero(weight)
            runs.append((start + int(counting[0]), start + int(counting[-1]) + 1))
        cuts = sorted({cut for run in runs for cut in run})
        number = {cut: place for place, cut in enumerate(cuts)}
        spans = tuple(range(number[first], number[last]) for first, last in runs)
        covers = [0] * (len(cuts) - 1)
        for span in spans:
            for interval in span:
                covers[interval] += 1
        return cls(tuple(starts), tuple(slice(*cut) for cut in pairwise(cuts)), spans, tuple(covers), tuple(weights))

    def within(self, tile: int, interval: int) -> slice:
        """Where an interval lies in a tile."""
        pixels, start = self.intervals[interval], self.starts[tile]
        return slice(pixels.start - start, pixels.stop - start)

    def weight(self, tile: int, interval: int) -> NDArray[np.float64]:
        """What a tile counts at each pixel of an interval."""
        return self.weights[tile][self.within(tile, interval)]
