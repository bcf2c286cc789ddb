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
    """Whether scale and offset are usually applied when files of this format are read, for example NetCDF files."""
    shift: int = 0
    """Integer to add to the band's stored numbers if scale and offset are not applied.

    Sentinel-2 products since 2022 store all numbers increased by 1000. Their shift is -1000."""

    doubt: str = ""
    """Warning to the user that the scale or offset is uncertain, with the reason. Empty if nothing is uncertain."""

    @property
    def told(self) -> bool:
        """Whether the file or product tells a scale other than 1 or an offset other than 0."""
        return (self.scale, self.offset) != (1.0, 0.0)
