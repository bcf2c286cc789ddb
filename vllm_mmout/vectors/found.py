"""What tracing has found: polygons that are whole, and what it keeps of those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Polygons:
    """Some polygons, each a region of connected pixels of one class. A large one may come in several of these."""

    classes: NDArray[np.int32]
    pixels: NDArray[np.int64]
    """Of each, in its whole."""
    areas: NDArray[np.float64]
    """The sum over the pixels of each, in its whole."""
    rings: NDArray[np.int64]
    """How many rings of each are here."""
    counts: NDArray[np.int64]
    """Corners of each ring; the first ring of a polygon is its exterior, counterclockwise as a picture is seen, the
    others are holes and run the other way."""
    vertices: NDArray[np.int32]
    """[n, 2]: column, with flags (`vllm_mmout.vectors.corners`), and row of the corners, ring by ring."""
    continued: bool
    """Whether the first polygon began before."""
    continues: bool
    """Whether rings of the last polygon are still to come."""

    def facts(self) -> Iterator[tuple[int, int, float, int]]:
        """Class, pixels, area and number of rings here of each."""
        return zip(self.classes.tolist(), self.pixels.tolist(), self.areas.tolist(), self.rings.tolist(), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class OpenBorders:
    """Borders that cross the lower edge of what was traced, with their ends there."""

    heads: NDArray[np.int32]
    """Column in which each comes up to its beginning."""
    tails: NDArray[np.int32]
    first: NDArray[np.intp]
    """Its first segment."""
    last: NDArray[np.intp]
    region: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """What is known of regions."""

    classes: NDArray[np.int32]
    pixels: NDArray[np.int64]
    areas: NDArray[np.float64]

    def some(self, which: NDArray[np.bool_]) -> Regions:
        """Those of them that are chosen."""
        return Regions(self.classes[which], self.pixels[which], self.areas[which])


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """Closed borders."""

    region: NDArray[np.intp]
    address: NDArray[np.int64]
    """In the spool; below 0: -1 - the place among the corners at hand."""
    count: NDArray[np.int64]
    hole: NDArray[np.bool_]

    def some(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Rings:
        """Those of them that are chosen."""
        return Rings(self.region[which], self.address[which], self.count[which], self.hole[which])

    def and_(self, other: Rings) -> Rings:
        """These and others."""
        return Rings(
            np.concatenate([self.region, other.region]),
            np.concatenate([self.address, other.address]),
            np.concatenate([self.count, other.count]),
            np.concatenate([self.hole, other.hole]),
        )

    def of(self, region: NDArray[np.intp]) -> Rings:
        """The same with the new number of each region."""
        return Rings(region[self.region], self.address, self.count, self.hole)
