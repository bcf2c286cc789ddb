"""Tile grid of web maps, which OGC calls the tile matrix set WebMercatorQuad (OGC 17-083r4, annex D.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from vllm_mmout.errors import OptionError

CRS: Final = "EPSG:3857"
SIDE: Final = 256
"""Height and width of a tile in pixels."""
FINEST: Final = 24
"""Largest zoom level of a tile. At this level, a tile's pixel is 9 mm wide at the equator."""
HALF: Final = 6378137.0 * math.pi
"""Half the side length of the square world map, in Web Mercator metres."""
NORTH: Final = math.degrees(math.atan(math.sinh(math.pi)))
"""Northern limit of the world map in degrees of latitude, about 85.05."""


class Box(NamedTuple):
    """Bounding box in degrees of longitude and latitude, inside the area that the Web Mercator map covers."""

    west: float
    south: float
    east: float
    north: float


class Metres(NamedTuple):
    """Bounding box in Web Mercator metres."""

    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def of(cls, box: Box) -> Metres:
        """Convert a box in degrees to Web Mercator metres."""
        return cls(*metres(box.west, box.south), *metres(box.east, box.north))

    def intersection(self, other: Metres) -> Metres | None:
        """Return the overlap of this box and the box ``other``. Return None if the boxes do not overlap."""
        lower, upper = map(max, self[:2], other[:2]), map(min, self[2:], other[2:])
        box = Metres(*lower, *upper)
        return box if box.left < box.right and box.bottom < box.top else None


@dataclass(frozen=True, slots=True)
class Tile:
    """Square tile of the world map.

    Raises:
        OptionError: the zoom or the number of the column or row does not exist.

    """

    zoom: int
    column: int
    """Column of the tile, counted from 0 in the west."""
    row: int
    """Row of the tile, counted from 0 in the north."""
    side: int = SIDE
    """Height and width of the tile's picture in pixels."""

    def __post_init__(self) -> None:
        if self.zoom > FINEST:
            raise OptionError(f"tiles have a zoom of at most {FINEST}, got {self.zoom}", param="z")
        for param, number in (("x", self.column), ("y", self.row)):
            if number >= 2**self.zoom:
                raise OptionError(
                    f"{param} of a tile at zoom {self.zoom} must be 0 to {2**self.zoom - 1}, got {number}", param=param
                )

    @property
    def extent(self) -> Metres:
        """Bounding box of the tile in Web Mercator metres."""
        width = 2 * HALF / 2**self.zoom
        left, top = self.column * width - HALF, HALF - self.row * width
        return Metres(left, top - width, left + width, top)

    @property
    def pixel(self) -> float:
        """Side length of a pixel of the tile, in Web Mercator metres."""
        side: float = 2 * HALF / 2**self.zoom
        return side / self.side


def metres(longitude: float, latitude: float) -> tuple[float, float]:
    """Convert degrees to Web Mercator metres (x, y)."""
    return math.radians(longitude) * HALF / math.pi, math.asinh(math.tan(math.radians(latitude))) * HALF / math.pi


def tile_range(box: Box, zoom: int) -> tuple[int, int, int, int]:
    """Return (first row, last row, first column, last column) of the map tiles that a box touches at a zoom level."""
    extent, width, last = Metres.of(box), 2 * HALF / 2**zoom, 2**zoom - 1
    numbers = (HALF - extent.top, HALF - extent.bottom, extent.left + HALF, extent.right + HALF)
    north, south, west, east = (min(max(math.floor(number / width), 0), last) for number in numbers)
    return north, south, west, east
