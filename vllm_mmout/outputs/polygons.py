"""PolygonsOutput: the regions of a raster of classes as polygons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import PIXEL_TRANSFORM, Lattice, pixel_areas, trace_polygons
from vllm_mmout.outputs.base import MediaOutput
from vllm_mmout.outputs.formats import FORMATS, formats_of
from vllm_mmout.outputs.raster import check_classes, class_rows

if TYPE_CHECKING:
    from geopandas import GeoDataFrame
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference, Polygons
    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.raster import RasterOutput


class PolygonsOutput(MediaOutput):
    """The regions of a raster of classes as polygons, traced each time they are asked for.

    A region is what pixels of one class that share an edge make up; nodata is none. Its polygon follows the edges of
    the pixels, with holes, and is valid in the sense of OGC simple features: rasterised again, the polygons are the
    raster. Each has the properties ``class`` (number), ``name``, ``pixels`` and ``area_m2`` (that of its pixels; None
    where it cannot be told, see `vllm_mmout.geo.pixel_areas`).

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

    output_kinds: ClassVar[tuple[str, ...]] = ("polygons", "classes")
    formats: ClassVar[dict[str, str]] = {**formats_of("polygons"), **formats_of("classes")}

    def __init__(self, classes: RasterOutput, *, simplify: float | None = None) -> None:
        check_classes(classes)
        if simplify is not None and not 0 <= simplify < math.inf:
            raise OptionError(f"simplify must be 0 or more pixels, got {simplify}")
        self.classes = classes
        self.simplify = simplify
        self.path = None

    @property
    def nbytes(self) -> int:
        """Bytes of the raster of classes, from shape and dtype."""
        return self.classes.nbytes

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
        return self.traced().features()

    def to_geodataframe(self) -> GeoDataFrame:
        """The polygons as geopandas has them, a row each, with the columns of the GeoParquet.

        All are in memory, for a moment twice. Needs the extra: ``pip install "vllm-mmout[geopandas]"``; else it is a
        ModuleNotFoundError. SaveError: as `save` as GeoParquet.
        """
        try:
            import geopandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'to_geodataframe needs geopandas; pip install "vllm-mmout[geopandas]"', name="geopandas"
            ) from error
        return geopandas.read_parquet(BytesIO(self.to_bytes("geoparquet")))

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

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the polygons to a file, .geojson, .parquet, .gpkg or .fgb; or the raster of classes, .tif.

        GeoJSON names the coordinate system in the member ``crs`` of 2008, as GDAL does: RFC 7946 knows longitude and
        latitude alone. GeoParquet needs the extra ``geoparquet``, GeoPackage and FlatGeobuf ``vector``. SaveError, too,
        where the raster lies nowhere that GeoJSON could name.
        """
        target = PurePath(path)
        if self.formats.get(target.suffix.lower()) == "tiff":
            return self.classes.save(path, **options)
        return super().save(path, **options)

    def traced(self, folder: Path | None = None) -> TracedPolygons:
        """Trace the raster, for writers of formats; polygons that are not whole yet may wait in ``folder``."""
        raster = self.classes
        pieces = trace_polygons(
            class_rows(raster),
            (raster.height, raster.width),
            nodata=raster.nodata,
            areas=pixel_areas(raster.georeference, raster.height),
            simplify=self.simplify or 0,
            folder=folder,
        )
        measured = pixel_areas(raster.georeference, 1) is not None
        lattice = Lattice(raster.transform or PIXEL_TRANSFORM, (raster.height, raster.width))
        return TracedPolygons(pieces, lattice, raster.georeference, raster.class_names, measured)

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        FORMATS[name].write(self, path, options)


@dataclass(frozen=True, slots=True)
class TracedPolygons:
    """The polygons of a raster while they are traced, once."""

    pieces: Iterable[Polygons]
    """Some at a time, in corners of pixels."""
    lattice: Lattice
    """Where these lie."""
    georeference: Georeference | None
    names: Sequence[str] | None
    """Of each class, from 0."""
    measured: bool
    """Whether areas are known, in square metres."""

    def name(self, number: int) -> str | None:
        """Of a class, None for one without."""
        return self.names[number] if self.names is not None and number < len(self.names) else None

    def properties(self, number: int, pixels: int, area: float) -> dict[str, Any]:
        """Of one polygon, as plain data."""
        return {
            "class": number,
            "name": self.name(number),
            "pixels": pixels,
            "area_m2": area if self.measured else None,
        }

    def features(self) -> Iterator[dict[str, Any]]:
        """Each polygon as a feature of GeoJSON, in plain data."""
        rings: list[Any] = []
        for piece in self.pieces:
            rows, bounds = self.lattice.closed(piece.vertices, piece.counts)
            points = self.lattice.points(rows).tolist()
            ends = bounds.tolist()
            ring = 0
            for place, (number, pixels, area, count) in enumerate(piece.facts(), start=1):
                rings += [points[ends[one] : ends[one + 1]] for one in range(ring, ring + count)]
                ring += count
                if place == len(piece.rings) and piece.continues:
                    break
                yield {
                    "type": "Feature",
                    "properties": self.properties(number, pixels, area),
                    "geometry": {"type": "Polygon", "coordinates": rings},
                }
                rings = []
