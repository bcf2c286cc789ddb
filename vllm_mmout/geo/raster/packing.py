"""Class `Packing`: scale and offset that convert the stored numbers of a band to measured values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """Scale and offset of one band: measured value = stored number * scale + offset.

    They are stated by the band's file, or by the satellite product that the file belongs to.
    """

    scale: float = 1.0
    offset: float = 0.0
    said_by: str = ""
    """Source of scale and offset as shown in messages, such as "its tags"."""
    applied: bool = False
    """Whether other readers of this file format apply scale and offset by default, as for NetCDF."""
    shift: int = 0
    """Integer added to the stored numbers by default. It is -1000 for Sentinel-2 products since 2022, whose numbers are
    1000 higher than before."""

    doubt: str = ""
    """Notice to the user why scale or offset is unknown, for files that should state it; "" if both are known."""

    @property
    def told(self) -> bool:
        """Whether scale or offset differs from its default, so that applying them changes the numbers."""
        return (self.scale, self.offset) != (1.0, 0.0)
