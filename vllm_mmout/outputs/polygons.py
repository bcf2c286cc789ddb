"""PolygonsOutput: the regions of a raster of classes as polygons."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.base import MediaOutput, no_options
from vllm_mmout.outputs.class_rows import check_classes, class_rows
from vllm_mmout.outputs.features import Described, features, write_geojson
from vllm_mmout.outputs.geojson import placement
from vllm_mmout.outputs.geoparquet import system_of, write_geoparquet
from vllm_mmout.raster.areas import pixel_areas
from vllm_mmout.vectors.lattice import PIXELS, Lattice
from vllm_mmout.vectors.region_stream import polygons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.source import Source
    from vllm_mmout.vectors.found import Polygons


class PolygonsOutput(MediaOutput):
    """The regions of a raster of classes as polygons, traced each time they are asked for.

    A region is what pixels of one class that share an edge make up; nodata is none. Its polygon follows the edges of
    the pixels, with holes, and is valid in the sense of OGC simple features: rasterised again, the polygons are the
    raster. Each has the properties ``class`` (number), ``name``, ``pixels`` and ``area_m2`` (that of its pixels; None
    where it cannot be told, see `vllm_mmout.raster.areas.pixel_areas`).

    The raster is read and traced in bands of rows, files are written as polygons are finished: memory does not grow
    with the raster, but for the longest border (some 100 bytes a corner) and, in a GeoParquet, the largest polygon.

    Args:
        classes: one band of classes, uint8 or uint16, in memory or on disk.
        simplify: how far borders may move to have fewer corners, in pixels. Polygons beside each other keep one border,
            without gaps; points where three meet, and the edges of the raster, stay. Regions smaller than the distance
            keep enough corners to have an area; borders that lie nearer to each other than the distance may cross.

    Raises:
        InputError: the raster is none of classes.
        OptionError: ``simplify`` is no distance.

    """

    formats: ClassVar[dict[str, str]] = {
        ".geojson": "geojson",
        ".parquet": "geoparquet",
        ".geoparquet": "geoparquet",
        ".tif": "tiff",
        ".tiff": "tiff",
    }

    def __init__(self, classes: RasterOutput, *, simplify: float | None = None) -> None:
        check_classes(classes)
        if simplify is not None and not 0 <= simplify < math.inf:
            raise OptionError(f"simplify must be 0 or more pixels, got {simplify}")
        self.classes = classes
        self.simplify = simplify
        self.path = None

    @property
    def areas(self) -> AreasOutput:
        """The pixels and the area of each class, counted each time."""
        from vllm_mmout.outputs.areas import AreasOutput

        return AreasOutput.of(self.classes)

    @property
    def image(self) -> Image:
        """The picture of the raster of classes."""
        return self.classes.image

    def features(self) -> Iterator[dict[str, Any]]:
        """Each polygon as a feature of GeoJSON in plain data, in the order in which they end from top to bottom.

        Coordinates are those of the raster's system; without a transform columns and rows, from its upper left corner.
        """
        return features(self._traced(), self._lattice(), self._described())

    def placed(self, source: Source) -> PolygonsOutput:
        """The same result laid on the input it was made from."""
        return PolygonsOutput(self.classes.placed(source), simplify=self.simplify)

    def close(self) -> None:
        """Free what the raster of classes holds on disk."""
        self.classes.close()

    def __repr__(self) -> str:
        simplify = f", simplify={self.simplify}" if self.simplify else ""
        where = f", path={self.path!r}" if self.path else ""
        return f"PolygonsOutput({self.classes!r}{simplify}{where})"

    def _repr_png_(self) -> bytes:
        return self.classes.to_bytes("png")

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the polygons to a file, .geojson or .parquet; or the raster of classes, .tif.

        GeoJSON names the coordinate system in the member ``crs`` of 2008, as GDAL does: RFC 7946 knows longitude and
        latitude alone. GeoParquet needs the extra: ``pip install "vllm-mmout[geoparquet]"``.

        Args:
            path: where to; the folder must exist.
            options: there are none.

        Returns:
            The path.

        Raises:
            SaveError: the suffix is unknown, the file cannot be written, the raster lies nowhere that GeoJSON could
                name, or a package for GeoParquet is missing.

        """
        target = Path(path)
        if self.formats.get(target.suffix.lower()) == "tiff":
            return self.classes.save(target, **options)
        return super().save(target, **options)

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        with path.open("wb") as file:
            self._write_to(file, name, options, path.parent)

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        if name == "tiff":
            return self.classes.to_bytes(name, **options)
        buffer = BytesIO()
        self._write_to(buffer, name, options, None)
        return buffer.getvalue()

    def _write_to(self, file: BinaryIO, name: str, options: dict[str, Any], folder: Path | None) -> None:
        """Write a format of polygons; what waits for the rest of its polygon may go to a temporary file in a folder."""
        no_options(name, options)
        if name == "geojson":
            crs, _ = placement(self.classes.georeference, instead=".parquet")
            write_geojson(file, self._traced(folder), self._lattice(), self._described(), crs)
        else:
            system = system_of(self.classes.georeference)
            write_geoparquet(file, self._traced(folder), self._lattice(), self._described(), system)

    def _traced(self, folder: Path | None = None) -> Iterator[Polygons]:
        raster = self.classes
        return polygons(
            class_rows(raster),
            (raster.height, raster.width),
            nodata=raster.nodata,
            areas=pixel_areas(raster.georeference, raster.height),
            simplify=self.simplify or 0,
            folder=folder,
        )

    def _lattice(self) -> Lattice:
        return Lattice(self.classes.transform or PIXELS, (self.classes.height, self.classes.width))

    def _described(self) -> Described:
        measured = pixel_areas(self.classes.georeference, 1) is not None
        return Described(self.classes.class_names, measured)
