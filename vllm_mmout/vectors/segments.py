"""Segments: borders that are not closed yet, as lists of the stretches that bands of rows added at their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.vectors.waiting import WaitingCorners


class Segments:
    """Stretches of waiting corners, each with the number of the one that follows it.

    Args:
        waiting: holds the corners; here are 24 bytes a stretch.

    """

    def __init__(self, waiting: WaitingCorners) -> None:
        self._waiting = waiting
        self._table = np.zeros((256, 3), np.int64)
        """Following stretch, address, number of corners."""
        self._free = np.arange(256)[::-1].copy()
        self._unused = 256

    def put(self, vertices: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.intp]:
        """Keep new stretches.

        Args:
            vertices: [n, 2], stretch by stretch.
            counts: corners of each.

        Returns:
            The number of each.

        """
        while self._unused < len(counts):
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._free = np.concatenate([np.arange(2 * size - 1, size - 1, -1), self._free[: self._unused], self._free])
            self._unused += size
            self._free = self._free[: 2 * size]
        self._unused -= len(counts)
        numbers = self._free[self._unused : self._unused + len(counts)].copy()
        ends = np.cumsum(counts)
        address = self._waiting.put(vertices)
        self._table[numbers] = np.stack([np.full(len(counts), -1), address + ends - counts, counts], axis=1)
        return numbers

    def join(self, one: NDArray[np.intp], following: NDArray[np.intp]) -> None:
        """Say what follows stretches that had none."""
        self._table[one, 0] = following

    def take(self, first: int) -> NDArray[np.int32]:
        """The corners of a stretch and of all that follow it, int32 [n, 2]; they are forgotten here."""
        parts, numbers = [], []
        while first >= 0:
            numbers.append(first)
            first, address, count = self._table[first].tolist()
            parts.append(self._waiting.take(address, count))
        self._free[self._unused : self._unused + len(numbers)] = numbers
        self._unused += len(numbers)
        return np.concatenate(parts)
