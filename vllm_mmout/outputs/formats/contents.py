"""Protocols for the outputs that are written to files. Modules that write a format need not import the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo import Affine, RasterMetadata


class Content(Protocol):
    """An output that can be written to files."""

    output_kinds: ClassVar[tuple[str, ...]]
    """Kinds of output that the class belongs to, the most specific first. They are keys of `Format.writers`."""
    formats: ClassVar[dict[str, str]]
    """Suffix of a file name -> name of the format."""


class RasterContent(Protocol):
    """A raster with its pixels and the metadata that files can store."""

    nodata: float | None
    band_names: tuple[str | None, ...]
    units: tuple[str | None, ...]
    metadata: dict[str, str]

    @property
    def array(self) -> NDArray[Any]:
        """Pixels [bands, height, width]."""

    @property
    def count(self) -> int:
        """Number of bands."""

    @property
    def height(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Number of columns."""

    @property
    def crs(self) -> str | None:
        """Coordinate system as "EPSG:n" or WKT, or None if unknown."""

    @property
    def transform(self) -> Affine | None:
        """Affine transform (a, b, c, d, e, f) from (column, row) to coordinates, or None if unknown."""

    @property
    def described(self) -> RasterMetadata:
        """Everything that is known about the raster except the pixels."""


class ClassesContent(Protocol):
    """Polygons that are traced from a class raster."""

    @property
    def classes(self) -> Encodable:
        """The class raster."""


class Encodable(Protocol):
    """An output that can be encoded as the bytes of a file."""

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - as in `Savable`
        """Return the output as the bytes of a file in a format."""


class BoxesContent(Protocol):
    """Boxes or points found in an input."""

    @property
    def geojson(self) -> Mapping[str, Any]:
        """GeoJSON FeatureCollection of the boxes or points."""


class SoundContent(Protocol):
    """A sound."""

    samples: NDArray[np.float32]
    """Samples [channels, n] in [-1, 1]."""
    rate: int
    """Sample rate in Hz."""
