"""Write rasters as NetCDF files through GDAL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.gdal_writing import gdal_writes
from vllm_mmout.geo.raster.geotiff import RasterMetadata, source_xml, stored_dtype
from vllm_mmout.geo.raster.pixels_file import PixelsFile
from vllm_mmout.geo.raster.raster import Window

_OPTIONS = {"FORMAT": "NC4", "COMPRESS": "DEFLATE", "ZLEVEL": "1", "WRITE_BOTTOMUP": "NO", "WRITE_GDAL_HISTORY": "NO"}
"""Options of GDAL's netCDF driver (https://gdal.org/drivers/raster/netcdf.html). Rows are written from top to bottom.
The history attribute is left out, since it would contain the path of a temporary file."""


_VARIABLE = re.compile(r"(?!(?:x|y|lat|lon|crs)$)[A-Za-z]\w{0,60}", re.ASCII)
"""Pattern of band names that can also be the names of NetCDF variables. Names of coordinate variables, such as "lat",
do not match."""


def check_netcdf() -> None:
    """Raise SaveError if rasterio's GDAL was built without its NetCDF driver."""
    from rasterio.env import Env

    with Env() as env:
        drivers = env.drivers()
    if "netCDF" not in drivers:
        raise SaveError(
            "saving NetCDF needs GDAL's netCDF driver, which rasterio's wheel has, and the installed rasterio lacks;"
            " save as .tif"
        )


def write_netcdf(
    target: Path,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    windows: Iterable[tuple[Window, NDArray[Any]]],
    **metadata: Unpack[RasterMetadata],
) -> None:
    """Write a raster as a NetCDF-4 file of the CF conventions, with a variable [y, x] for each band.

    Args:
        target: path of the new file. A temporary file is written beside it.
        shape: bands, height and width of the raster.
        dtype: dtype of the pixels. bool is stored as uint8, and float16 as float32.
        windows: windows that cover the raster, with their pixels [bands, height, width].
        metadata: metadata of the raster.

    Raises:
        SaveError: the metadata does not fit, or integers of 64 bits have no nodata value.
        OSError: the disk is full.

    """
    from rasterio.shutil import copy

    if dtype.kind in "iu" and dtype.itemsize == 8 and metadata.get("nodata") is None:
        raise SaveError(f"GDAL reads 0 as nodata in NetCDF files of {dtype} without a nodata value; save as .tif")
    part = target.with_name(f"{target.name}.pixels")
    pixels = PixelsFile(str(part), shape, dtype)
    try:
        for window, values in windows:
            pixels.write(window.row, window.col, values)
        pixels.close()
        xml = source_xml(str(part), shape, stored_dtype(dtype), metadata, items_of_bands=_items(shape[0], metadata))
        with gdal_writes(str(target), part.stat().st_size):
            copy(xml, str(target), driver="netCDF", **_OPTIONS)
    finally:
        pixels.discard()


def _items(bands: int, metadata: RasterMetadata) -> list[dict[str, str]]:
    """Return the metadata items of each band, which GDAL writes as attributes of the NetCDF variable.

    A single band gives its name to the variable. Several bands become the variables Band1, Band2 and so on, since GDAL
    would append these numbers to their names.
    """
    names = metadata.get("band_names") or (None,) * bands
    units, classes = metadata.get("units") or (None,) * bands, metadata.get("class_names")
    items = []
    for name, unit in zip(names, units, strict=True):
        band = {key: text for key, text in (("long_name", name), ("units", unit)) if text}
        if bands == 1 and _VARIABLE.fullmatch(name or ""):
            band["NETCDF_VARNAME"] = str(name)
        if classes:
            band["flag_values"] = f"{{{','.join(map(str, range(len(classes))))}}}"
            band["flag_meanings"] = " ".join("_".join(text.split()) or "_" for text in classes)
        items.append(band)
    return items
