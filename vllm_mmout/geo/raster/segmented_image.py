"""Protocol `SegmentedImage`: image stored in strips or tiles that `read_windows` can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo.raster.raster import Window
    from vllm_mmout.geo.raster.scratch import Scratch
    from vllm_mmout.geo.raster.segments import Place


class SegmentedImage(Protocol):
    """Image stored in segments (strips or tiles) of equal size. Each segment must be decoded as a whole."""

    planes: int
    """Number of planes stored one after the other. With one plane, each strip or tile holds all bands."""
    dtype: np.dtype[Any]
    grid: tuple[int, int]
    """Number of rows and columns of segments (strips or tiles) in one plane."""
    bytes: int
    """Size of a decoded segment (strip or tile) in bytes."""
    fill: float
    """Value of all pixels of a strip or tile that the file does not store."""

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of a segment (strip or tile), in pixels."""

    def window(self, place: Place) -> Window:
        """Return the window of the image that the segment (strip or tile) at ``place`` covers."""

    def read(self, places: Sequence[Place], scratch: Scratch) -> Sequence[memoryview | None]:
        """Return the stored bytes of strips or tiles. The item for a strip or tile missing in the file is None.

        The bytes are valid until ``scratch`` is used by the next call.
        """

    def decode(self, place: Place, data: memoryview, scratch: Scratch) -> NDArray[Any]:
        """Decode the stored bytes ``data`` of a segment (strip or tile) to pixels [rows, columns, bands].

        The pixels are valid until ``scratch`` is used by the next call.
        """
