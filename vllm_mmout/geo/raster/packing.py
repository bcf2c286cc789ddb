"""The class `Packing`, the scale and offset of a band's stored numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """The scale and offset of one band, stated by its file or by the product that the file belongs to.

    The measured value is number * scale + offset.
    """

    scale: float = 1.0
    offset: float = 0.0
    said_by: str = ""
    """Name of the source of scale and offset, for messages."""
    applied: bool = False
    """Whether software that reads this file format applies scale and offset by default, as for NetCDF."""
    shift: int = 0
    """Integer added to the numbers by default. It converts counts of a newer product release to older counts."""

    doubt: str = ""
    """Sentence that says why scale and offset are unknown although such numbers usually have them; "" if known."""

    @property
    def told(self) -> bool:
        """Whether scale or offset changes the numbers."""
        return (self.scale, self.offset) != (1.0, 0.0)
