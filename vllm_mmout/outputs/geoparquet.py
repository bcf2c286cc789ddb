"""Polygons as GeoParquet 1.1 (https://geoparquet.org/releases/v1.1.0), written piece by piece."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.raster.crs.text import proj_crs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    from numpy.typing import NDArray

    from vllm_mmout.outputs.features import Described
    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.vectors.found import Polygons
    from vllm_mmout.vectors.lattice import Lattice

_ROWS = 2**15
_BYTES = 2**24
"""Polygons, and bytes of them, that make a row group."""
_VERSION = "1.1.0"
_POLYGON = struct.Struct("<BII")
"""Well-known binary (OGC 06-103r4, 8.2): byte order, the type 3, number of rings."""
_POINT = 16
"""Bytes of a corner."""
_MOST = 2**31 - 1
"""Bytes of geometry that a row group can hold."""
_EXTRA = 'pip install "vllm-mmout[geoparquet]"'


def check_writable(georeference: Georeference | None) -> None:
    """Refuse what cannot be written, before there are polygons.

    Args:
        georeference: of their raster.

    Raises:
        SaveError: pyarrow or pyproj is not installed, or the coordinate system is not understood or unknown to PROJ.

    """
    _arrow()
    system = system_of(georeference)
    if system is not None:
        _projjson(system)


def system_of(georeference: Georeference | None) -> str | None:
    """The coordinate system of polygons, as `write_geoparquet` takes it; None where there is none to name.

    Args:
        georeference: of their raster.

    Raises:
        SaveError: the file would say that there is none, where there is one that is not understood.

    """
    if georeference is None or georeference.transform is None:
        return None
    if georeference.unread_keys:
        raise SaveError(
            f"GeoParquet names the coordinate system, this result's input has {georeference.why_no_crs};"
            " or save the result as .tif"
        )
    return georeference.crs


def write_geoparquet(
    file: BinaryIO, found: Iterable[Polygons], lattice: Lattice, described: Described, crs: str | None
) -> None:
    """Write GeoParquet, geometries as well-known binary, in row groups of bounded size.

    In memory are a row group and what pyarrow makes of it; a polygon larger than one is a row group alone.

    Args:
        file: open for writing.
        found: the polygons.
        lattice: their corners.
        described: what is said of them.
        crs: "EPSG:n" or WKT; None if unknown, which the file then says.

    Raises:
        SaveError: pyarrow or pyproj is not installed, the coordinate system is unknown to PROJ, or a polygon has more
            than 2 GiB.

    """
    arrow, parquet = _arrow()
    system = None if crs is None else _projjson(crs)
    schema = arrow.schema(
        [
            arrow.field("class", arrow.int32(), nullable=False),
            arrow.field("name", arrow.string()),
            arrow.field("pixels", arrow.int64(), nullable=False),
            arrow.field("area_m2", arrow.float64()),
            arrow.field("geometry", arrow.binary(), nullable=False),
        ]
    )
    low, high = np.full(2, math.inf), np.full(2, -math.inf)
    # A dictionary and statistics of geometries are of no use, and hold each of them once more.
    plain = {"use_dictionary": ["class", "name"], "write_statistics": ["class", "name", "pixels", "area_m2"]}
    with parquet.ParquetWriter(file, schema, compression="zstd", **plain) as writer:
        rows = _Rows(described)
        for polygons in found:
            corners, bounds = lattice.closed(polygons.vertices, polygons.counts)
            points = lattice.points(corners)
            low, high = np.minimum(low, points.min(axis=0)), np.maximum(high, points.max(axis=0))
            for whole in rows.add(polygons, points, bounds.tolist()):
                writer.write_table(whole.table(arrow, schema))
        if rows.facts:
            writer.write_table(rows.table(arrow, schema))
        box = [*low.tolist(), *high.tolist()] if np.isfinite(low).all() else None
        writer.add_key_value_metadata({"geo": _metadata(system, box)})


def _metadata(system: dict[str, Any] | None, box: list[float] | None) -> str:
    """What the file says of its geometries."""
    column: dict[str, Any] = {
        "encoding": "WKB",
        "geometry_types": ["Polygon"],
        "orientation": "counterclockwise",
        "crs": system,
    }
    if box is not None:
        column["bbox"] = box
    return json.dumps({"version": _VERSION, "primary_column": "geometry", "columns": {"geometry": column}})


class _Rows:
    """The polygons of a row group."""

    def __init__(self, described: Described) -> None:
        self._described = described
        self.facts: list[tuple[Any, ...]] = []
        """Of each polygon that is whole all columns but the last."""
        self._data = bytearray()
        self._ends = [0]
        self._rings = 0
        """Of the polygon that is not whole yet."""

    def add(self, polygons: Polygons, points: NDArray[np.float64], bounds: Sequence[int]) -> Iterator[_Rows]:
        """Take polygons, or parts of them; what is given back is full, and is to be written before going on."""
        data = memoryview(points.astype("<f8").tobytes())
        ring = 0
        for place, (number, pixels, area, more) in enumerate(polygons.facts(), start=1):
            if self._rings == 0:
                self._data += _POLYGON.pack(1, 3, 0)
            for one in range(ring, ring + more):
                self._data += struct.pack("<I", bounds[one + 1] - bounds[one])
                self._data += data[_POINT * bounds[one] : _POINT * bounds[one + 1]]
            ring += more
            self._rings += more
            if len(self._data) > _MOST:
                raise SaveError("a polygon of more than 2 GiB cannot be written to GeoParquet; save it as .geojson")
            if place == len(polygons.rings) and polygons.continues:
                break
            struct.pack_into("<I", self._data, self._ends[-1] + _POLYGON.size - 4, self._rings)
            described = self._described
            self.facts.append((number, described.name(number), pixels, area if described.measured else None))
            self._ends.append(len(self._data))
            self._rings = 0
            if len(self.facts) >= _ROWS or len(self._data) > _BYTES:
                yield self
                self.facts, self._data, self._ends = [], bytearray(), [0]

    def table(self, arrow: Any, schema: Any) -> Any:
        """The row group; its geometries are not copied."""
        columns = [
            arrow.array(values, field.type)
            for values, field in zip(zip(*self.facts, strict=True), schema, strict=False)  # all but the geometries
        ]
        buffers = [None, arrow.py_buffer(np.array(self._ends, np.int32)), arrow.py_buffer(self._data)]
        columns.append(arrow.Array.from_buffers(arrow.binary(), len(self.facts), buffers))
        return arrow.table(columns, schema=schema)


def _arrow() -> tuple[Any, Any]:
    """Apache Arrow, and its module for Parquet."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise SaveError(f"saving GeoParquet needs pyarrow; {_EXTRA}") from error
    return pa, parquet


def _projjson(crs: str) -> dict[str, Any]:
    """A coordinate system as PROJJSON."""
    try:
        system: dict[str, Any] = proj_crs(crs).to_json_dict()
    except ImportError as error:
        raise SaveError(f"saving GeoParquet of a georeferenced raster needs pyproj; {_EXTRA}") from error
    except InputError as error:
        raise SaveError(f"the coordinate system cannot be saved as GeoParquet: {error}; or save as .tif") from error
    return system
