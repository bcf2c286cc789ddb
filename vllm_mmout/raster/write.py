"""Writing GeoTIFF through tifffile, so that GDAL reads back all that was known."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import tifffile

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.atomic import whole_file
from vllm_mmout.raster.gdal_metadata import GDAL_METADATA, GDAL_NODATA, TEXT_TAGS, GdalMetadata, format_nodata
from vllm_mmout.raster.geotag import GeoTag

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference

_TILE = 512
_KINDS = "uif"
_CLASSIC_LIMIT = 2**32 - 2**25
"""Bytes of pixels above which offsets of 32 bits might not do; some room is left for tags."""
_PREDICTED = {"u": (1, 2, 4), "i": (1, 2, 4), "f": (4, 8)}
"""Sizes in bytes for which tifffile, imagecodecs and GDAL all have a predictor, by kind of dtype."""


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
    pixels = _checked_pixels(array)
    items = {key: str(text) for key, text in (metadata or {}).items() if key != "AREA_OR_POINT"}
    if datetime is not None:
        items["TIFFTAG_DATETIME"] = datetime if isinstance(datetime, str) else f"{datetime:%Y:%m:%d %H:%M:%S}"
    tags = [
        *(georeference.to_tags() if georeference is not None else ()),
        *_text_tags(items),
        *_gdal_tags(pixels, nodata, _gdal_metadata(len(pixels), items, descriptions, units, categories)),
    ]
    options = {**_layout(pixels), **_colours(pixels, colormap)}
    if isinstance(target, str | Path):
        with whole_file(target) as part:
            _write(part, pixels, tags, options)
        return
    buffer = BytesIO()
    _write(buffer, pixels, tags, options)
    target.write(buffer.getbuffer())


def _checked_pixels(array: NDArray[Any]) -> NDArray[Any]:
    pixels = np.asarray(array)
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {pixels.shape}")
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8)
    if pixels.dtype.kind not in _KINDS:
        raise SaveError(f"a GeoTIFF takes integers or floating point, got {pixels.dtype}")
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _layout(pixels: NDArray[Any]) -> dict[str, Any]:
    """How tifffile is to lay the pixels out."""
    bands, height, width = pixels.shape
    tiled = height > _TILE or width > _TILE
    predicted = pixels.dtype.itemsize in _PREDICTED[pixels.dtype.kind]
    return {
        "tile": (_TILE, _TILE) if tiled else None,
        "rowsperstrip": None if tiled else height,
        "planarconfig": "separate" if bands > 1 else None,
        "photometric": "rgb" if bands == 3 and pixels.dtype == np.uint8 else "minisblack",
        "predictor": predicted,
        "bigtiff": pixels.nbytes > _CLASSIC_LIMIT,
    }


def _colours(pixels: NDArray[Any], colormap: NDArray[np.uint8] | None) -> dict[str, Any]:
    """The colour table as TIFF has it: uint16 [3, 256]."""
    if colormap is None:
        return {}
    colours = np.asarray(colormap)
    if len(pixels) != 1 or pixels.dtype != np.uint8:
        raise SaveError(f"a colour table takes one band of uint8, got {len(pixels)} of {pixels.dtype}; leave it out")
    if colours.dtype != np.uint8 or colours.ndim != 2 or colours.shape[1] != 3 or len(colours) > 256:
        raise SaveError(
            f"a colour table must be uint8 [n, 3] with n up to 256, got {colours.dtype} {list(colours.shape)}"
        )
    table = np.zeros((3, 256), np.uint16)
    table[:, : len(colours)] = colours.T.astype(np.uint16) * 257
    return {"photometric": "palette", "colormap": table}


def _text_tags(items: dict[str, str]) -> list[GeoTag]:
    """Take the items out that have a TIFF tag of their own, and give these tags."""
    tags = []
    for name, code in TEXT_TAGS.items():
        text = items.pop(name, None)
        if text:
            if "\0" in text:
                raise SaveError(f"metadata item {name!r} has a NUL, which ends a TIFF text; remove it")
            tags.append(GeoTag.text(code, text))
    return tags


def _gdal_metadata(
    bands: int,
    items: Mapping[str, str],
    descriptions: Sequence[str | None],
    units: Sequence[str | None],
    categories: Sequence[str] | None,
) -> GdalMetadata:
    """The items of the file and of its bands."""
    for name, texts in (("descriptions", descriptions), ("units", units)):
        if texts and len(texts) != bands:
            raise SaveError(f"{name} must be one a band, {bands}, got {len(texts)}")
    classes = {f"CLASS_{number}": name for number, name in enumerate(categories or ())}
    return GdalMetadata(
        items,
        {band: text for band, text in enumerate(descriptions) if text},
        {0: classes} if classes else {},
        {band: text for band, text in enumerate(units) if text},
    )


def _gdal_tags(pixels: NDArray[Any], nodata: float | None, metadata: GdalMetadata) -> list[GeoTag]:
    """What GDAL keeps in tags of its own."""
    xml = metadata.to_xml()
    tags = [] if xml is None else [GeoTag.text(GDAL_METADATA, xml)]
    if nodata is not None:
        tags.append(GeoTag.text(GDAL_NODATA, format_nodata(nodata, pixels.dtype)))
    return tags


def _write(target: Path | BytesIO, pixels: NDArray[Any], tags: Sequence[GeoTag], options: Mapping[str, Any]) -> None:
    layout = dict(options)
    big = layout.pop("bigtiff")
    with tifffile.TiffWriter(target, bigtiff=big, byteorder="<") as tiff:
        tiff.write(
            pixels[0] if len(pixels) == 1 else pixels,
            compression="zlib",
            metadata=None,
            software=False,
            description=None,
            extratags=[(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags],
            **layout,
        )
