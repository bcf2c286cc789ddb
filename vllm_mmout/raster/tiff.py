"""Reading TIFF: pixels through tifffile, the tags of GeoTIFF and GDAL beside them."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import tifffile

from vllm_mmout.errors import InputError
from vllm_mmout.raster.directory import Directory, read_directories, truncated
from vllm_mmout.raster.gdal_metadata import GDAL_METADATA, GDAL_NODATA, TEXT_TAGS, GdalMetadata, parse_nodata
from vllm_mmout.raster.georeference import Georeference
from vllm_mmout.raster.geotag import GEO_TAGS
from vllm_mmout.raster.raster import Raster

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_DECODER_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What tifffile and the codecs below it raise on damaged data: imagecodecs' errors are RuntimeErrors."""

# tifffile warns of every positive nodata in signed integers; the tag is read and understood here instead.
logging.getLogger("tifffile").addFilter(lambda record: "GDAL_NODATA" not in record.getMessage())

_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_MASK_OF_FULL_SIZE = 4


def read_tiff(file: BinaryIO, name: str) -> Raster:
    """Read the first image of a TIFF, and the mask that belongs to it.

    Args:
        file: the file, seekable.
        name: what to call it in an error.

    Raises:
        InputError: the file is truncated or damaged, or its compression is not supported.

    """
    directory = read_directories(file, name)[0]
    file.seek(0)
    try:
        with tifffile.TiffFile(file) as tiff:
            page = _page(tiff, 0)
            page.nodata = _fill(directory, file, page)
            array = _pixels(page, file, name)
            alpha = _alpha(page)
            mask = _mask(tiff, page, file, name)
    except InputError:
        raise
    except _DECODER_ERRORS as error:
        raise InputError(f"{name} is a damaged TIFF: {type(error).__name__}: {error}") from error
    if mask is None and alpha is not None:
        mask = array[alpha - 1] != 0
    gdal = GdalMetadata.from_xml(directory.text(file, GDAL_METADATA) or "")
    return Raster(
        array,
        nodata=_nodata(directory, file, array.dtype),
        georeference=_georeference(directory, file),
        descriptions=tuple(gdal.descriptions.get(band) or None for band in range(len(array))),
        metadata={**gdal.items, **_texts(directory, file)},
        mask=mask,
        alpha=alpha,
    )


def _page(tiff: tifffile.TiffFile, number: int) -> tifffile.TiffPage:
    page = tiff.pages[number]
    if not isinstance(page, tifffile.TiffPage):
        raise TypeError(f"directory {number} is not parsed")
    return page


def _nodata(directory: Directory, file: BinaryIO, dtype: DTypeLike) -> float | None:
    text = directory.text(file, GDAL_NODATA)
    return None if text is None else parse_nodata(text, dtype)


def _fill(directory: Directory, file: BinaryIO, page: tifffile.TiffPage) -> float:
    """What tiles that are not stored consist of: nodata, as in GDAL, or 0."""
    value = None if page.dtype is None else _nodata(directory, file, page.dtype)
    return 0 if value is None else value


def _pixels(page: tifffile.TiffPage, file: BinaryIO, name: str) -> NDArray[Any]:
    """The pixels of one page, [bands, height, width]."""
    _check_compression(page, name)
    _check_segments(page, file, name)
    array = np.asarray(page.asarray())
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if page.axes == "YX":
        return array[np.newaxis]
    if page.axes == "YXS":
        return np.ascontiguousarray(np.moveaxis(array, 2, 0))
    if page.axes == "SYX":
        return array
    raise InputError(f"{name} has axes {page.axes} of {page.shape}; a raster must have rows, columns and bands")


def _check_compression(page: tifffile.TiffPage, name: str) -> None:
    """Refuse what no codec here decodes, by the name of the compression."""
    try:
        tifffile.TIFF.DECOMPRESSORS[page.compression]
    except KeyError:
        codec = getattr(page.compression, "name", f"number {int(page.compression)}")
        raise InputError(
            f"{name} is compressed with {codec}, which cannot be read here; convert it to deflate or LZW"
        ) from None


def _check_segments(page: tifffile.TiffPage, file: BinaryIO, name: str) -> None:
    """Refuse a file that ends before its last strip or tile does."""
    size = file.seek(0, 2)
    ends = [offset + count for offset, count in zip(page.dataoffsets, page.databytecounts, strict=False) if count]
    if ends and max(ends) > size:
        kind = "tile" if page.is_tiled else "strip"
        raise truncated(name, size, max(ends), f"{kind} {int(np.argmax(ends))} of {len(ends)}")


def _alpha(page: tifffile.TiffPage) -> int | None:
    """The number, from 1, of the alpha band."""
    first = page.samplesperpixel - len(page.extrasamples)
    for place, kind in enumerate(page.extrasamples):
        if int(kind) in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA):
            return first + place + 1
    return None


def _mask(tiff: tifffile.TiffFile, image: tifffile.TiffPage, file: BinaryIO, name: str) -> NDArray[np.bool_] | None:
    """The mask that GDAL keeps in a directory of its own (its RFC 15), bool [height, width]."""
    for number in range(1, len(tiff.pages)):
        page = _page(tiff, number)
        same_size = (page.imagelength, page.imagewidth) == (image.imagelength, image.imagewidth)
        if int(page.subfiletype) == _MASK_OF_FULL_SIZE and same_size:
            mask: NDArray[np.bool_] = _pixels(page, file, name)[0] != 0
            return mask
    return None


def _georeference(directory: Directory, file: BinaryIO) -> Georeference | None:
    return Georeference.from_tags(tag for code in sorted(GEO_TAGS) if (tag := directory.tag(file, code)) is not None)


def _texts(directory: Directory, file: BinaryIO) -> dict[str, str]:
    found = {name: directory.text(file, code) for name, code in TEXT_TAGS.items()}
    return {name: text for name, text in found.items() if text}
