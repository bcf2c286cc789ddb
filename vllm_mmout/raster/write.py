"""Writing GeoTIFF through tifffile, so that GDAL reads back all that was known."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.atomic import whole_file
from vllm_mmout.raster.layout import Layout, stored_dtype
from vllm_mmout.raster.tags import colour_table, geotiff_tags

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference

_CLASSIC_LIMIT = 2**32 - 2**25
"""Bytes of pixels above which offsets of 32 bits might not do; some room is left for tags."""


def write_geotiff(
    target: str | Path | BinaryIO,
    array: NDArray[Any],
    *,
    georeference: Georeference | None = None,
    nodata: float | None = None,
    descriptions: Sequence[str | None] = (),
    units: Sequence[str | None] = (),
    categories: Sequence[str] | None = None,
    colormap: NDArray[np.uint8] | None = None,
    metadata: Mapping[str, str] | None = None,
    datetime: dt.datetime | str | None = None,
) -> None:
    """Write a GeoTIFF: deflate, in tiles of 512 where it is larger than one, bands one after the other.

    A path gets its file only when it is whole; after an error there is none.

    Args:
        target: path, or a file open for writing bytes.
        array: [bands, height, width] of bool (stored as uint8), integers or floating point.
        georeference: where the raster lies.
        nodata: value that means "no observation".
        descriptions: one a band, None for a band without; may be left out.
        units: unit of each band's values ("Mg/ha"), None for a band without; may be left out.
        categories: name of each class, from 0; stored as items CLASS_0, CLASS_1, ... of the first band.
        colormap: uint8 [n, 3], colour of each value from 0; only for one band of uint8, n up to 256.
        metadata: GDAL metadata items; those named TIFFTAG_DATETIME and the like become the TIFF tags of that name.
        datetime: time of acquisition; text as TIFF has it, "YYYY:MM:DD HH:MM:SS".

    Raises:
        SaveError: the array, or something said about it, does not fit a GeoTIFF, or the place cannot be written.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    pixels = np.asarray(array)
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {pixels.shape}")
    pixels = pixels.astype(stored_dtype(pixels.dtype), copy=False)
    bands, height, width = pixels.shape
    layout = Layout(bands, height, width, pixels.dtype)
    tags = geotiff_tags(
        bands,
        pixels.dtype,
        georeference=georeference,
        nodata=nodata,
        descriptions=descriptions,
        units=units,
        categories=categories,
        metadata=metadata,
        datetime=datetime,
    )
    colours = None if colormap is None else colour_table(bands, pixels.dtype, colormap)
    big = needs_bigtiff(pixels.nbytes)
    if isinstance(target, str | Path):
        with whole_file(target) as part:
            layout.write(part, pixels, tags=tags, colours=colours, bigtiff=big)
        return
    buffer = BytesIO()
    layout.write(buffer, pixels, tags=tags, colours=colours, bigtiff=big)
    target.write(buffer.getbuffer())


def needs_bigtiff(size: int) -> bool:
    """Whether a file of that many bytes of pixels needs offsets of 64 bits."""
    return size > _CLASSIC_LIMIT
