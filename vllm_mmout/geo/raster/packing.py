"""Packing: what a file says of the numbers of a band."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """What a file, or the product that it belongs to, says of the numbers of one band.

    The value that was measured is number * scale + offset.
    """

    scale: float = 1.0
    offset: float = 0.0
    said_by: str = ""
    """Where it stands, in words."""
    applied: bool = False
    """Whether all who read such files apply it unasked, as of NetCDF."""
    shift: int = 0
    """What is added to the numbers unasked: it brings counts of a newer release of a product to those of older ones."""

    doubt: str = ""
    """The sentence that says why nothing is known of numbers which usually need it."""

    @property
    def told(self) -> bool:
        """Whether it says more than that the numbers are the values."""
        return (self.scale, self.offset) != (1.0, 0.0)
