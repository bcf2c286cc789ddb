"""The protocol `SegmentedImage`, an image that `read_windows` can read."""

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
    """Image stored in segments of equal size. Each segment must be decoded as a whole."""

    planes: int
    """Number of planes stored one after the other. With one plane, a segment holds all bands."""
    dtype: np.dtype[Any]
    grid: tuple[int, int]
    """Rows and columns of the grid of segments in one plane."""
    bytes: int
    """Bytes of a decoded segment."""
    fill: float
    """Value of all pixels of a segment that is not stored."""

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of a segment, in pixels."""

    def window(self, place: Place) -> Window:
        """Return the window of the image that a segment covers."""

    def read(self, places: Sequence[Place], scratch: Scratch) -> Sequence[memoryview | None]:
        """Return the stored bytes of segments, None for a segment that is not stored.

        The bytes are valid until ``scratch`` is used by the next call.
        """

    def decode(self, place: Place, data: memoryview, scratch: Scratch) -> NDArray[Any]:
        """Return the pixels [rows, columns, bands] of a segment from its stored bytes.

        The pixels are valid until ``scratch`` is used by the next call.
        """
