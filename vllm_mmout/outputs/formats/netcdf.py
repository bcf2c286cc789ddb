"""Write rasters as NetCDF files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Window, check_netcdf, write_netcdf

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.raster import RasterOutput

_SIDE: Final = 512
_READ_BYTES: Final = 2**26
"""Maximum number of bytes of a raster to read at a time. A block of 512 x 512 pixels is always read whole."""


def check(georeference: Georeference | None, form: Format, instead: str) -> None:
    """Raise SaveError if GDAL lacks the NetCDF driver, or a NetCDF file cannot express the georeference.

    The error message suggests ``instead``, the name of another format.
    """
    check_netcdf()
    if georeference is None:
        return
    if georeference.unread_keys:
        raise SaveError(
            f"{form.title} names the coordinate system, this result's input has {georeference.why_no_crs}; or save the"
            f" result as {instead}"
        )
    transform = georeference.transform
    if (transform is None and (georeference.gcps or georeference.rpcs)) or (
        transform and (transform[1] or transform[3])
    ):
        raise SaveError(
            f"{form.title} has one coordinate for each row and column, and this result is rotated or placed by points;"
            f" save it as {instead}"
        )


def write(output: RasterOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write a raster as a NetCDF file with one variable [y, x] per band. Read the raster in blocks, to save memory."""
    check(output.georeference, form, ".tif")
    width = _SIDE * max(1, _READ_BYTES // (_SIDE * _SIDE * output.count * output.dtype.itemsize))
    parent = target.parent if isinstance(target, Path) else None
    shape, dtype = (output.count, output.height, output.width), np.dtype(output.dtype)
    with tempfile.TemporaryDirectory(prefix=".netcdf-", dir=parent) as folder:  # the driver needs a file on disk
        file = Path(folder, f"raster{form.suffixes[0]}")
        write_netcdf(file, shape, dtype, _windows(output, width), **output.described)
        if isinstance(target, Path):
            file.replace(target)
        else:
            target.write(file.read_bytes())


def _windows(output: RasterOutput, width: int) -> Iterator[tuple[Window, NDArray[Any]]]:
    """Yield (window, pixels) for each window of the raster. A window has at most 512 rows and ``width`` columns."""
    for row in range(0, output.height, _SIDE):
        for col in range(0, output.width, width):
            window = Window(row, col, min(_SIDE, output.height - row), min(width, output.width - col))
            yield window, output.read(window)
