"""Writing cloud-optimised GeoTIFF, so that GDAL reads back all that was known."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack, cast

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.atomic import whole_file
from vllm_mmout.raster.gdal_metadata import GDAL_NODATA, as_pixels_have_it
from vllm_mmout.raster.geotag import GeoTag
from vllm_mmout.raster.writing.ifd import Image, head
from vllm_mmout.raster.writing.layout import BLOCK, Layout
from vllm_mmout.raster.writing.pyramid import Pyramid
from vllm_mmout.raster.writing.reduction import Meaning
from vllm_mmout.raster.writing.spool import Spool, write_whole
from vllm_mmout.raster.writing.tags import Told, colour_table, geotiff_tags

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from vllm_mmout.raster.georeference import Georeference

_OVERVIEW = GeoTag(254, 4, 1, (1,))
"""NewSubfileType: an image of reduced size."""


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
    classes: bool | None = None,
) -> None:
    """Write a cloud-optimised GeoTIFF: deflate, bands one after the other, statistics of each band.

    Where it is larger than 512 it has tiles of 512 and overviews, each half as large, until one fits a tile. A path
    gets its file only when it is whole; after an error there is none.

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
        classes: whether the numbers name classes, of which overviews take one rather than the mean; None: those of
            bool, and integers that have categories or a colormap.

    Raises:
        SaveError: the array, or something said about it, does not fit a GeoTIFF, or the place cannot be written.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    told = Told(
        georeference=georeference,
        nodata=nodata,
        descriptions=descriptions,
        units=units,
        categories=categories,
        colormap=colormap,
        metadata=metadata,
        datetime=datetime,
        classes=classes,
    )
    if isinstance(target, str | Path):
        with whole_file(target) as part:
            write_geotiff_here(part, array, **told)
        return
    pixels, layout = _checked(array, told)
    buffer = BytesIO()
    _write(buffer, BytesIO(), layout, pixels, told)
    target.write(buffer.getbuffer())


def write_geotiff_here(path: Path, array: NDArray[Any], **told: Unpack[Told]) -> None:
    """Write a GeoTIFF under its name at once; for those who rename it, or remove it after an error.

    Args:
        path: a file that does not exist.
        array: as of `write_geotiff`.
        told: as of `write_geotiff`.

    Raises:
        OSError: the place cannot be written.
        SaveError: as `write_geotiff`.
        InputError: as `write_geotiff`.

    """
    pixels, layout = _checked(array, told)
    with tempfile.TemporaryFile(dir=path.parent, buffering=0) as spool, path.open("xb", buffering=0) as file:
        _write(cast("BinaryIO", file), cast("BinaryIO", spool), layout, pixels, told)


def _checked(array: NDArray[Any], told: Told) -> tuple[NDArray[Any], Layout]:
    """The pixels and how they are laid out; what does not fit is said before anything is done."""
    pixels = np.asarray(array)
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {pixels.shape}")
    bands, height, width = pixels.shape
    layout = Layout.of(bands, height, width, pixels.dtype)
    described(layout, **told)
    return pixels, layout


def meaning(dtype: DTypeLike, **told: Unpack[Told]) -> Meaning:
    """What overviews and statistics depend on, of all that is said of a raster of a dtype."""
    classes, kind = told.get("classes"), np.dtype(dtype).kind
    if classes is None:
        named = told.get("categories") is not None or told.get("colormap") is not None
        classes = kind == "b" or (kind in "iu" and named)
    nodata = told.get("nodata")
    return Meaning(None if nodata is None else as_pixels_have_it(nodata, dtype), classes)


def described(layout: Layout, statistics: Sequence[Mapping[str, str]] = (), **told: Unpack[Told]) -> list[list[GeoTag]]:
    """The tags of a raster and of each of its overviews, without those that say where blocks lie.

    Args:
        layout: of the raster.
        statistics: items of each band, or none at all.
        told: what is known.

    Raises:
        SaveError: something said about the raster does not fit a GeoTIFF.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    colormap = told.get("colormap")
    known = geotiff_tags(layout.bands, layout.dtype, statistics, **told)
    colours = None if colormap is None else colour_table(layout.bands, layout.dtype, colormap)
    nodata = [tag for tag in known if tag.code == GDAL_NODATA]
    full, *overviews = layout.levels()
    return [
        [*full.tags(colours), *known],
        *([_OVERVIEW, *overview.tags(colours), *nodata] for overview in overviews),
    ]


def write_pyramid(file: BinaryIO, pyramid: Pyramid, **told: Unpack[Told]) -> None:
    """Write a file of blocks that were made: all directories, then the blocks, those of the smallest overview first.

    Args:
        file: open for writing, unbuffered.
        pyramid: complete, and made of what the numbers mean.
        told: what is known of the raster.

    Raises:
        SaveError: something said about the raster does not fit a GeoTIFF.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.
        OSError: the disk is full.

    """
    tags = described(pyramid.levels[0].layout, pyramid.statistics(), **told)
    images = [
        Image(own, level.sizes.reshape(-1).astype(np.int64), level.layout.tiled)
        for own, level in zip(tags, pyramid.levels, strict=True)
    ]
    write_whole(file, head(images))
    pyramid.copy(file)


def _write(file: BinaryIO, spool: BinaryIO, layout: Layout, pixels: NDArray[Any], told: Told) -> None:
    """Write the pixels of a whole raster."""
    pyramid = Pyramid(layout, Spool(spool))
    pyramid.expect(meaning(pixels.dtype, **told))
    for row in range(layout.grid[0]):
        for col in range(layout.grid[1]):
            rows, cols = (slice(place * BLOCK, (place + 1) * BLOCK) for place in (row, col))
            pyramid.write(row, col, pixels[:, rows, cols])
    write_pyramid(file, pyramid, **told)
