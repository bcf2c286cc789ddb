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
    """Whether readers of this file format usually apply scale and offset, as for NetCDF."""
    shift: int = 0
    """Integer that is added to the stored numbers by default. It is -1000 for Sentinel-2 products since 2022, which
    store all numbers increased by 1000."""

    doubt: str = ""
    """Note to the user why scale or offset is unknown, although files of this kind should state it. "" if both are
    known."""

    @property
    def told(self) -> bool:
        """Whether scale or offset differs from 1 and 0, so that applying them changes the numbers."""
        return (self.scale, self.offset) != (1.0, 0.0)
