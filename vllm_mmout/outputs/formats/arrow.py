"""Convert polygons to Apache Arrow record batches, and write them as GeoParquet 1.1 files.

The format is specified at https://geoparquet.org/releases/v1.1.0.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import proj_crs
from vllm_mmout.outputs.formats import Format, opened

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference, Polygons
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.polygons import PolygonsOutput, TracedPolygons


_ROWS = 2**15
"""Maximum number of polygons in a record batch."""
_BYTES = 2**24
"""Number of bytes of geometry above which a record batch is complete."""
_POLYGON = struct.Struct("<BII")
"""Header of a polygon in well-known binary, WKB (OGC 06-103r4, 8.2): byte order, geometry type 3, number of rings."""
_VERTEX_BYTES = 16
"""Number of bytes of a vertex in WKB."""
_MAX_BYTES = 2**31 - 1
"""Maximum number of bytes of geometry in a record batch, because Arrow stores byte offsets of geometries as int32."""


class ArrowPolygons:
    """Iterable of Arrow record batches of bounded size, with the polygons traced from a class raster.

    A polygon that is larger than the bound makes the batch larger. After the iteration ``low`` and ``high`` are the
    bounds of all polygons.
    """

    def __init__(self, traced: TracedPolygons, form: Format) -> None:
        self._traced = traced
        self._form = form
        arrow = pyarrow(form)
        self.schema = arrow.schema(
            [
                arrow.field("class", arrow.int32(), nullable=False),
                arrow.field("name", arrow.string()),
                arrow.field("pixels", arrow.int64(), nullable=False),
                arrow.field("area_m2", arrow.float64()),
                arrow.field("geometry", arrow.binary(), nullable=False),
            ]
        )
        self._arrow = arrow
        self.low, self.high = np.full(2, math.inf), np.full(2, -math.inf)
        """Smallest and largest coordinates (x, y) of the polygons so far."""
        self._rows: list[tuple[Any, ...]] = []
        """Values of all columns except the geometry, for each complete polygon in the current batch."""
        self._data = bytearray()
        self._ends = [0]
        self._rings = 0
        """Number of rings already written of an incomplete polygon at the end of the batch. 0 if all polygons are
        complete."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the record batches. An instance can be iterated only once."""
        lattice = self._traced.lattice
        for polygons in self._traced.pieces:
            corners, bounds = lattice.closed(polygons.vertices, polygons.counts)
            points = lattice.points(corners)
            self.low, self.high = np.minimum(self.low, points.min(axis=0)), np.maximum(self.high, points.max(axis=0))
            yield from self._add(polygons, points, bounds.tolist())
        if self._rows:
            yield self._batch()

    def _add(self, polygons: Polygons, points: NDArray[np.float64], bounds: Sequence[int]) -> Iterator[Any]:
        """Append polygons to the current record batch. Yield each full batch, and begin a new batch.

        The last polygon may be incomplete: the next call then adds its remaining rings.
        """
        data = memoryview(points.astype("<f8").tobytes())
        traced, ring = self._traced, 0
        for position, (number, pixels, area, count) in enumerate(polygons.facts(), start=1):
            if self._rings == 0:
                self._data += _POLYGON.pack(1, 3, 0)
            for index in range(ring, ring + count):
                self._data += struct.pack("<I", bounds[index + 1] - bounds[index])
                self._data += data[_VERTEX_BYTES * bounds[index] : _VERTEX_BYTES * bounds[index + 1]]
            ring += count
            self._rings += count
            if len(self._data) > _MAX_BYTES:
                raise SaveError(
                    f"a polygon of more than 2 GiB cannot be written to {self._form.title}; save it as .geojson"
                )
            if position == len(polygons.rings) and polygons.continues:
                break
            struct.pack_into("<I", self._data, self._ends[-1] + _POLYGON.size - 4, self._rings)
            self._rows.append((number, traced.name(number), pixels, area if traced.measured else None))
            self._ends.append(len(self._data))
            self._rings = 0
            if len(self._rows) >= _ROWS or len(self._data) > _BYTES:
                yield self._batch()

    def _batch(self) -> Any:
        arrow = self._arrow
        columns = [
            arrow.array(values, field.type)
            for values, field in zip(zip(*self._rows, strict=True), self.schema, strict=False)  # without the geometry
        ]
        buffers = [None, arrow.py_buffer(np.array(self._ends, np.int32)), arrow.py_buffer(self._data)]
        columns.append(arrow.Array.from_buffers(arrow.binary(), len(self._rows), buffers))
        self._rows, self._data, self._ends = [], bytearray(), [0]
        return arrow.record_batch(columns, schema=self.schema)


def pyarrow(form: Format) -> Any:
    """Import and return pyarrow. Raise SaveError with the pip command if it is not installed."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise SaveError(f"saving {form.title} needs pyarrow; {form.install}") from error
    return pa


def system_of(georeference: Georeference | None, form: Format) -> Any:
    """Return the CRS of a georeference as pyproj's ``CRS``. Return None if the transform or the CRS is unknown.

    Raise SaveError if the CRS cannot be read or named, or pyproj is not installed.
    """
    if georeference is None or georeference.transform is None:
        return None
    if georeference.unread_keys:
        raise SaveError(
            f"{form.title} names the coordinate system, this result's input has {georeference.why_no_crs};"
            " or save the result as .tif"
        )
    try:
        return None if georeference.crs is None else proj_crs(georeference.crs)
    except ImportError as error:
        raise SaveError(f"saving {form.title} of a georeferenced raster needs pyproj; {form.install}") from error
    except InputError as error:
        raise SaveError(f"the coordinate system cannot be saved as {form.title}: {error}; or save as .tif") from error


_VERSION = "1.1.0"
_NAMED = ["class", "name"]
_NUMBERS = ["pixels", "area_m2"]


def check(georeference: Georeference | None, form: Format, _instead: str) -> None:
    """Raise SaveError if the CRS cannot be written as PROJJSON, or a needed package is not installed."""
    pyarrow(form)
    system_of(georeference, form)


def write_geoparquet(output: PolygonsOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write polygons as GeoParquet, in row groups of bounded size. Memory holds a single row group at a time."""
    system = system_of(output.classes.georeference, form)
    with opened(target) as (file, folder):
        polygons = ArrowPolygons(output.traced(folder), form)
        from pyarrow import parquet

        # A dictionary and statistics of the geometries would be useless, and would copy each geometry.
        plain = {"use_dictionary": _NAMED, "write_statistics": _NAMED + _NUMBERS}
        with parquet.ParquetWriter(file, polygons.schema, compression="zstd", **plain) as writer:
            for batch in polygons:
                writer.write_batch(batch)
            box = [*polygons.low.tolist(), *polygons.high.tolist()] if np.isfinite(polygons.low).all() else None
            writer.add_key_value_metadata({"geo": _metadata(None if system is None else system.to_json_dict(), box)})


def _metadata(system: dict[str, Any] | None, box: list[float] | None) -> str:
    column: dict[str, Any] = {
        "encoding": "WKB",
        "geometry_types": ["Polygon"],
        "orientation": "counterclockwise",
        "crs": system,
    }
    if box is not None:
        column["bbox"] = box
    return json.dumps({"version": _VERSION, "primary_column": "geometry", "columns": {"geometry": column}})
