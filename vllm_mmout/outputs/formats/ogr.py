"""Write polygons as GeoPackage, FlatGeobuf, zipped Shapefile or PMTiles with GDAL (pyogrio), in a child process.

At the end GDAL builds the spatial index and holds the GIL meanwhile, for seconds if the scene is large. In this process
that would block all other requests. Batches are sent through a pipe, so neither process holds all polygons in memory.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.formats import Format, arrow

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.polygons import PolygonsOutput
    from vllm_mmout.outputs.raster import RasterOutput

_PMTILES = "pmtiles"
_DRIVERS = {
    "geopackage": "GPKG",
    "flatgeobuf": "FlatGeobuf",
    "shapefile": "ESRI Shapefile",
    _PMTILES: "PMTiles",
}
_LAYER = "polygons"
_TEXT_BYTES = 254
"""Largest number of bytes of a text in a Shapefile."""
_WORLD = 2 * math.pi * 6378137.0
"""Side length of the square world map of Web Mercator, in metres."""
_UNITS = 4096
"""Extent of a vector tile: coordinates in the tile are integers from 0 to this number."""
_UNITS_PER_PIXEL = 8
"""Minimum side length of a raster pixel at the highest zoom level, in coordinate units of a vector tile."""
_TILE_LIMITS = {"MAX_FEATURES": 300_000, "MAX_SIZE": 8_000_000}
"""GDAL's limits for a vector tile: number of polygons, and size in bytes. GDAL drops the polygons that exceed a limit.

A tile of the highest zoom level usually has at most 532 x 532 pixels, and therefore fewer than 300 000 polygons."""
_FINEST = 22
"""Maximum zoom of the vector tiles that GDAL can write."""
_CHILD = """
import json, sys
sys.modules.update(dict.fromkeys(("geopandas", "pandas", "shapely")))
import pyarrow.ipc, pyogrio
path, driver, layer, crs, options = sys.argv[1:]
with pyarrow.ipc.open_stream(sys.stdin.buffer) as batches:
    pyogrio.write_arrow(batches, path, driver=driver, layer=layer, crs=crs or None,
                        geometry_name="geometry", geometry_type="Polygon", encoding="UTF-8", **json.loads(options))
"""
"""Python code of the child process. The code prevents pyogrio from importing geopandas, pandas and shapely, because
these imports would take longer than all other work of the process."""


def check(georeference: Georeference | None, form: Format, _instead: str) -> None:
    """Raise SaveError if polygons cannot be saved in the format ``form``.

    PROJ must know the CRS, and the packages that the format needs must be installed. PMTiles must have a CRS.
    """
    arrow.check(georeference, form, "")
    if form.name == _PMTILES and arrow.system_of(georeference, form) is None:
        raise SaveError("PMTiles are tiles of the world map, and this result has no place on it; save as .gpkg")
    if importlib.util.find_spec("pyogrio") is None:
        raise SaveError(f"saving {form.title} needs pyogrio; {form.install}")


def write(output: PolygonsOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write polygons to a GeoPackage, FlatGeobuf, zipped Shapefile or PMTiles archive, as a layer "polygons".

    GeoPackage and FlatGeobuf have a spatial index. The index of a FlatGeobuf is built in memory, with about 200 bytes
    per polygon.
    """
    check(output.classes.georeference, form, "")
    if form.name == "shapefile":
        _check_names(output.classes.class_names)
    system = arrow.system_of(output.classes.georeference, form)
    options = {"MAXZOOM": _finest_zoom(output.classes, system), **_TILE_LIMITS} if form.name == _PMTILES else {}
    parent = target.parent if isinstance(target, Path) else None
    # GDAL makes further files next to this file. They are removed with the folder.
    with tempfile.TemporaryDirectory(prefix=".polygons-", dir=parent) as folder:
        file = Path(folder, f"{_LAYER}{form.suffixes[0]}")
        polygons = arrow.ArrowPolygons(output.traced(Path(folder)), form)
        _written(file, _DRIVERS[form.name], "" if system is None else system.to_wkt(), options, polygons)
        if isinstance(target, Path):
            file.replace(target)
        else:
            target.write(file.read_bytes())


def _check_names(class_names: Sequence[str] | None) -> None:
    """Raise SaveError if the name of a class is too long for a Shapefile."""
    for name in class_names or ():
        if len(name.encode()) > _TEXT_BYTES:
            raise SaveError(
                f"a Shapefile holds texts of {_TEXT_BYTES} bytes at most, and the class {name[:40]!r}... has a longer"
                " name; save as .gpkg"
            )


def _finest_zoom(raster: RasterOutput, system: Any) -> int:
    """Return the highest zoom level of the vector tiles to write for a raster.

    At this zoom, the side of a pixel has `_UNITS_PER_PIXEL` or more units of a tile's coordinates, so that rounding to
    these units hardly moves the corners of pixels. `_FINEST` limits the zoom. Raise SaveError if the middle of the
    raster has no place on the map of Web Mercator.
    """
    from pyproj import Transformer

    georeference = raster.georeference
    if georeference is None or georeference.transform is None:
        raise TypeError("a raster without a transform has no place; `check` refuses it")
    a, b, c, d, e, f = georeference.transform
    cols, rows = (raster.width / 2 + np.array([0, 1, 0]), raster.height / 2 + np.array([0, 0, 1]))
    web = Transformer.from_crs(system, "EPSG:3857", always_xy=True)
    x, y = web.transform(a * cols + b * rows + c, d * cols + e * rows + f)
    pixel = min(math.hypot(x[step] - x[0], y[step] - y[0]) for step in (1, 2))
    if not 0 < pixel < math.inf:
        raise SaveError("the middle of the result has no place on the map of Web Mercator; save as .gpkg")
    zoom = math.ceil(math.log2(_WORLD * _UNITS_PER_PIXEL / _UNITS / pixel))
    return min(max(zoom, 0), _FINEST)


def _written(file: Path, driver: str, crs: str, options: Mapping[str, int], polygons: arrow.ArrowPolygons) -> None:
    arguments = [str(file), driver, _LAYER, crs, json.dumps(options)]
    command = [sys.executable, "-P", "-W", "ignore", "-c", _CHILD, *arguments]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log)  # noqa: S603 - fixed code
        try:
            _send(polygons, cast("IO[bytes]", child.stdin))
        except BaseException:
            child.kill()
            raise
        finally:
            status = child.wait()
        if status:
            log.seek(0)
            reason = log.read().decode(errors="replace").strip().rpartition("\n")[2] or f"it ended with status {status}"
            raise SaveError(f"GDAL cannot write {''.join(file.suffixes)}: {reason}") from OSError(errno.EIO, reason)


def _send(polygons: arrow.ArrowPolygons, pipe: IO[bytes]) -> None:
    """Send the polygons to the child process. Stop without an error if the child process ends early.

    The caller then finds the reason in the exit status and the log of the child process.
    """
    from pyarrow import ipc

    with contextlib.suppress(BrokenPipeError), pipe, ipc.new_stream(pipe, polygons.schema) as stream:
        for batch in polygons:
            stream.write_batch(batch)
