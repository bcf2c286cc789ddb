"""Write polygons as GeoPackage, FlatGeobuf or zipped Shapefile with GDAL (pyogrio), in a child process.

At the end GDAL builds the spatial index and holds the GIL meanwhile, for seconds if the scene is large. In this process
that would block all other requests. Batches are sent through a pipe, so neither process holds all polygons in memory.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.formats import Format, arrow

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.polygons import PolygonsOutput

_DRIVERS = {"geopackage": "GPKG", "flatgeobuf": "FlatGeobuf", "shapefile": "ESRI Shapefile"}
_LAYER = "polygons"
_TEXT_BYTES = 254
"""Largest number of bytes of a text in a Shapefile."""
_CHILD = """
import sys
sys.modules.update(dict.fromkeys(("geopandas", "pandas", "shapely")))
import pyarrow.ipc, pyogrio
path, driver, layer, crs = sys.argv[1:]
with pyarrow.ipc.open_stream(sys.stdin.buffer) as batches:
    pyogrio.write_arrow(batches, path, driver=driver, layer=layer, crs=crs or None,
                        geometry_name="geometry", geometry_type="Polygon", encoding="UTF-8")
"""
"""Python code of the child process. The code blocks the import of geopandas, pandas and shapely, which pyogrio would
import if they are installed. Importing them would take longer than all other work of the process."""


def check(georeference: Georeference | None, form: Format, _instead: str) -> None:
    """Raise SaveError if PROJ does not know the CRS, or a package that the format needs is not installed."""
    arrow.check(georeference, form, "")
    if importlib.util.find_spec("pyogrio") is None:
        raise SaveError(f"saving {form.title} needs pyogrio; {form.install}")


def write(output: PolygonsOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write polygons to a GeoPackage, FlatGeobuf or zipped Shapefile, as a layer "polygons".

    GeoPackage and FlatGeobuf have a spatial index. The index of a FlatGeobuf is built in memory, with about 200 bytes
    per polygon.
    """
    check(output.classes.georeference, form, "")
    if form.name == "shapefile":
        _check_names(output.classes.class_names)
    system = arrow.system_of(output.classes.georeference, form)
    parent = target.parent if isinstance(target, Path) else None
    # GDAL makes further files next to this file. They are removed with the folder.
    with tempfile.TemporaryDirectory(prefix=".polygons-", dir=parent) as folder:
        file = Path(folder, f"{_LAYER}{form.suffixes[0]}")
        polygons = arrow.ArrowPolygons(output.traced(Path(folder)), form)
        _written(file, _DRIVERS[form.name], "" if system is None else system.to_wkt(), polygons)
        if isinstance(target, Path):
            file.replace(target)
        else:
            target.write(file.read_bytes())


def _check_names(class_names: Sequence[str] | None) -> None:
    """Raise SaveError if a Shapefile would cut the name of a class."""
    for name in class_names or ():
        if len(name.encode()) > _TEXT_BYTES:
            raise SaveError(
                f"a Shapefile holds texts of {_TEXT_BYTES} bytes at most, and the class {name[:40]!r}... has a longer"
                " name; save as .gpkg"
            )


def _written(file: Path, driver: str, crs: str, polygons: arrow.ArrowPolygons) -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-c", _CHILD, str(file), driver, _LAYER, crs]
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
    """Send the polygons to the child process. If it ends early, return, since its exit status tells the reason."""
    from pyarrow import ipc

    with contextlib.suppress(BrokenPipeError), pipe, ipc.new_stream(pipe, polygons.schema) as stream:
        for batch in polygons:
            stream.write_batch(batch)
