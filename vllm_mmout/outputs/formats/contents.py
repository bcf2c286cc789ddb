"""Protocols of the outputs that can be written to files, so that writers of formats need not import the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo import Affine, RasterMetadata


class Content(Protocol):
    """Output that can be written to files."""

    output_kinds: ClassVar[tuple[str, ...]]
    """Kinds of this output, such as "raster", the most specific first. A file format stores the output as the first
    kind that the format supports."""
    formats: ClassVar[dict[str, str]]
    """Maps file suffixes such as ".tif" to names of formats."""


class RasterContent(Protocol):
    """Raster output: pixels, and the metadata that files can store."""

    nodata: float | None
    band_names: tuple[str | None, ...]
    units: tuple[str | None, ...]
    scales: tuple[float, ...]
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
        """Keyword arguments of `RasterOutput` that describe the raster, such as georeference, nodata and band names."""


class ClassesContent(Protocol):
    """Output that holds polygons, and the class raster from which they are traced."""

    @property
    def classes(self) -> Encodable:
        """Class raster that the polygons are traced from."""


class Encodable(Protocol):
    """Output that can be encoded as the bytes of a file."""

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - as in `Savable`
        """Return the output as the bytes of a file. ``format`` is a name or a suffix such as "png"."""


class BoxesContent(Protocol):
    """Output of boxes, points or measured features that can be written as GeoJSON."""

    @property
    def geojson(self) -> Mapping[str, Any]:
        """GeoJSON FeatureCollection of the boxes, points or features."""


class SoundContent(Protocol):
    """Sound output: samples and their rate."""

    samples: NDArray[np.float32]
    """Samples [channels, n] in [-1, 1]."""
    rate: int
    """Sample rate in Hz."""
