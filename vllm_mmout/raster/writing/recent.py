"""Recent: the planes of blocks that came last, as far as a number of bytes goes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Place: TypeAlias = tuple[int, int, int, int]
"""Level, band, row and column of a plane."""


class Recent:
    """Copies of the planes that were added last.

    Args:
        limit: bytes that they take together at most.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._planes: OrderedDict[Place, NDArray[Any]] = OrderedDict()
        self.nbytes = 0
        """Bytes that are taken."""

    def add(self, place: Place, plane: NDArray[Any]) -> None:
        """Keep a plane, which may change afterwards, and let the oldest go where there is no room."""
        if plane.nbytes > self._limit:
            return
        self.drop(place)
        while self.nbytes + plane.nbytes > self._limit:
            self.nbytes -= self._planes.popitem(last=False)[1].nbytes
        self._planes[place] = np.array(plane, order="C")
        self.nbytes += plane.nbytes

    def get(self, place: Place) -> NDArray[Any] | None:
        """A plane, None if it went."""
        return self._planes.get(place)

    def drop(self, place: Place) -> None:
        """Let a plane go that nobody needs any more."""
        plane = self._planes.pop(place, None)
        if plane is not None:
            self.nbytes -= plane.nbytes

    def clear(self) -> None:
        """Let all go."""
        self._planes.clear()
        self.nbytes = 0
