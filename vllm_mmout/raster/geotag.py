"""The TIFF tags that say where a raster lies (GeoTIFF 1.1, OGC 19-008, annex B; RPC: GDAL's RFC 22)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL_PIXEL_SCALE = 33550
MODEL_TIEPOINT = 33922
MODEL_TRANSFORMATION = 34264
GEO_KEY_DIRECTORY = 34735
GEO_DOUBLE_PARAMS = 34736
GEO_ASCII_PARAMS = 34737
RPC_COEFFICIENTS = 50844

KEY_TAGS = frozenset({GEO_KEY_DIRECTORY, GEO_DOUBLE_PARAMS, GEO_ASCII_PARAMS})
"""Tags that hold the coordinate system."""

PLACEMENT_TAGS = frozenset({MODEL_PIXEL_SCALE, MODEL_TIEPOINT, MODEL_TRANSFORMATION})
"""Tags that tie pixels to coordinates."""

GEO_TAGS = KEY_TAGS | PLACEMENT_TAGS | {RPC_COEFFICIENTS}
"""Tags that travel with a georeference."""

ASCII = 2
SHORT = 3
DOUBLE = 12


@dataclass(frozen=True, slots=True)
class GeoTag:
    """One TIFF tag as it stands in a file."""

    code: int
    dtype: int
    """TIFF's number of the value's type: 2 ASCII, 3 SHORT, 12 DOUBLE, ..."""
    count: int
    """Number of values; for ASCII bytes, the closing NUL included."""
    value: tuple[float, ...] | bytes
    """The numbers, or the bytes of ASCII."""

    @classmethod
    def shorts(cls, code: int, values: Iterable[int]) -> GeoTag:
        """A tag of 16-bit integers."""
        numbers = tuple(values)
        return cls(code, SHORT, len(numbers), numbers)

    @classmethod
    def doubles(cls, code: int, values: Iterable[float]) -> GeoTag:
        """A tag of 64-bit floating-point numbers."""
        numbers = tuple(float(value) for value in values)
        return cls(code, DOUBLE, len(numbers), numbers)

    @classmethod
    def text(cls, code: int, text: str) -> GeoTag:
        """A tag of text, closed by a NUL."""
        data = text.encode() + b"\0"
        return cls(code, ASCII, len(data), data)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers; none for ASCII."""
        return () if isinstance(self.value, bytes) else self.value
