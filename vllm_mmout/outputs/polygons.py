"""PolygonsOutput, the regions of a class raster as polygons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import PIXEL_TRANSFORM, Lattice, pixel_areas, trace_polygons
from vllm_mmout.outputs.base import MediaOutput
from vllm_mmout.outputs.class_rows import check_classes, class_rows
from vllm_mmout.outputs.formats import FORMATS, formats_of

if TYPE_CHECKING:
    from geopandas import GeoDataFrame
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference, Polygons
    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.raster import RasterOutput


class PolygonsOutput(MediaOutput):
    """Polygons around the regions of a class raster. Each use traces the polygons again.

    A region consists of pixels of the same class that share edges. Nodata forms no region. A polygon follows the edges
    of the pixels, may have holes, and is valid by OGC Simple Features. Rasterising the polygons gives the raster
    again. Each polygon has the properties ``class`` (number), ``name``, ``pixels`` (count) and ``area_m2`` (total area
    of its pixels, None if unknown, see `vllm_mmout.geo.pixel_areas`).

    The raster is read and traced in bands of rows, and files are written while polygons are finished. Therefore memory
    use depends only on the longest border (about 100 bytes per corner) and, for GeoParquet, on the largest polygon.

    Args:
        classes: raster of a single band of classes, uint8 or uint16, in memory or on disk.
        simplify: distance in pixels that borders may move in order to have fewer corners. Neighbouring polygons keep
            a common border without gaps. Points where three polygons meet and the edges of the raster are kept. Regions
            smaller than the distance keep enough corners to have an area. Borders that are closer to each other than
            the distance may cross.

    Raises:
        InputError: the raster is not a class raster.
        OptionError: ``simplify`` is negative or not finite.

    """

    takes_area: ClassVar[bool] = True
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
        """Size of the class raster in memory, in bytes."""
        return self.classes.nbytes

    @property
    def areas(self) -> AreasOutput:
        """Number of pixels and area of each class. Each access counts the pixels again.

        Its `nodata` is None, since the raster does not tell gaps from pixels outside the request's ``aoi``.
        """
        from vllm_mmout.outputs.areas import AreasOutput

        return AreasOutput.of(self.classes).model_copy(update={"nodata": None})

    @property
    def image(self) -> Image:
        """Picture of the class raster from which the polygons are traced."""
        return self.classes.image

    def figure(self, *, title: str | None = None, picture: Any = None, opacity: float | None = None) -> Figure:
        """Draw the regions over the picture of the input, as a matplotlib ``Figure``. See `RasterOutput.figure`."""
        classes = copy(self.classes)  # a copy reads the same file
        classes.input_picture = self.classes.input_picture or self.input_picture
        classes.assumed = self.classes.assumed or self.assumed
        return classes.figure(title=title, picture=picture, opacity=opacity)

    def features(self) -> Iterator[dict[str, Any]]:
        """Iterate over the polygons as GeoJSON features (dicts), ordered by the last raster row of each polygon.

        Coordinates are in the raster's coordinate system, or columns and rows from its upper left corner if the raster
        has no transform.
        """
        return self.traced().features()

    def to_geodataframe(self) -> GeoDataFrame:
        """Return the polygons as a geopandas ``GeoDataFrame``, with the columns of the GeoParquet file.

        All polygons are in memory, for a moment twice. Needs ``pip install "vllm-mmout[geopandas]"``, otherwise raises
        ModuleNotFoundError. Raises SaveError in the same cases as saving a GeoParquet file.
        """
        try:
            import geopandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'to_geodataframe needs geopandas; pip install "vllm-mmout[geopandas]"', name="geopandas"
            ) from error
        return geopandas.read_parquet(BytesIO(self.to_bytes("geoparquet")))

    def placed(self, source: Source) -> PolygonsOutput:
        """Return a copy with the georeference of the input ``source``, so that polygons are in the input's CRS."""
        return PolygonsOutput(self.classes.placed(source), simplify=self.simplify)

    def close(self) -> None:
        """Close the class raster. If the raster is kept in a temporary file, remove the file."""
        self.classes.close()

    def __repr__(self) -> str:
        simplify = f", simplify={self.simplify}" if self.simplify else ""
        where = f", path={self.path!r}" if self.path else ""
        return f"PolygonsOutput({self.classes!r}{simplify}{where})"

    def _repr_png_(self) -> bytes:
        return self.classes.to_bytes("png")

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the polygons to a file. If the suffix of ``path`` is .tif, write the class raster instead.

        Suffixes for polygons are .geojson, .parquet, .gpkg, .fgb, .shp.zip and .pmtiles.

        GeoJSON names the coordinate system in the member ``crs`` of GeoJSON 2008, as GDAL does, since RFC 7946 allows
        only longitude and latitude. GeoParquet needs the extra ``geoparquet``; GeoPackage, FlatGeobuf, Shapefile and
        PMTiles need ``vector``. Raises SaveError as `Savable.save` does, and if the format cannot express the
        georeference.
        """
        target = PurePath(path)
        if self.formats.get(target.suffix.lower()) == "tiff":
            return self.classes.save(path, **options)
        return super().save(path, **options)

    def traced(self, folder: Path | None = None) -> TracedPolygons:
        """Return an iterator that traces the polygons on demand. Temporary files are created in ``folder``."""
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
    """Iterator over polygons that are traced from a class raster on demand. It can be consumed only once."""

    pieces: Iterable[Polygons]
    """Batches of polygons. The vertices of the polygons are corners of pixels, as (column, row)."""
    lattice: Lattice
    """Converter from pixel corners (column, row) to coordinates in the raster's CRS."""
    georeference: Georeference | None
    """Georeference of the class raster."""
    names: Sequence[str] | None
    """Names of the classes, the first for class 0. None if they are unnamed."""
    measured: bool
    """True if the areas of the polygons are known, in square metres."""

    def name(self, number: int) -> str | None:
        """Return the name of class ``number``, or None if it is unnamed."""
        return self.names[number] if self.names is not None and number < len(self.names) else None

    def properties(self, number: int, pixels: int, area: float) -> dict[str, Any]:
        """Return the GeoJSON properties of a polygon of class ``number``."""
        return {
            "class": number,
            "name": self.name(number),
            "pixels": pixels,
            "area_m2": area if self.measured else None,
        }

    def features(self) -> Iterator[dict[str, Any]]:
        """Yield each polygon as a GeoJSON feature (a dict)."""
        rings: list[Any] = []
        for piece in self.pieces:
            rows, bounds = self.lattice.closed(piece.vertices, piece.counts)
            points = self.lattice.points(rows).tolist()
            ends = bounds.tolist()
            ring = 0
            for position, (number, pixels, area, count) in enumerate(piece.facts(), start=1):
                rings += [points[ends[index] : ends[index + 1]] for index in range(ring, ring + count)]
                ring += count
                if position == len(piece.rings) and piece.continues:
                    break
                yield {
                    "type": "Feature",
                    "properties": self.properties(number, pixels, area),
                    "geometry": {"type": "Polygon", "coordinates": rings},
                }
                rings = []
