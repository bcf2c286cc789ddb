"""Reading TIFF by windows: pixels through tifffile, the tags of GeoTIFF and GDAL beside them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tifffile

from vllm_mmout.errors import InputError
from vllm_mmout.raster.directory import Directory, read_directories
from vllm_mmout.raster.gdal_metadata import GDAL_METADATA, GDAL_NODATA, TEXT_TAGS, GdalMetadata, parse_nodata
from vllm_mmout.raster.georeference import Georeference
from vllm_mmout.raster.geotag import GEO_TAGS
from vllm_mmout.raster.segments import DECODER_ERRORS, Segments
from vllm_mmout.raster.sequence import read_windows
from vllm_mmout.raster.windowed import Facts, OpenRaster

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import BinaryIO

    from numpy.typing import DTypeLike, NDArray

    from vllm_mmout.raster.shared_file import SharedFile
    from vllm_mmout.raster.window import Window

_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_MASK_OF_FULL_SIZE = 4


def open_tiff(file: SharedFile) -> OpenRaster:
    """Open the first image of a TIFF, and the mask that belongs to it.

    Args:
        file: the file, which the raster closes.

    Raises:
        InputError: the file is truncated or damaged, or its compression is not supported.

    """
    binary = cast("BinaryIO", file)
    directories = read_directories(binary, file.name)
    file.seek(0)
    try:
        with tifffile.TiffFile(binary) as tiff:
            page = _page(tiff, 0)
            image = Segments(page, file)
            alpha = _alpha(page, file.name)
            mask = _mask(tiff, image, file)
    except InputError:
        raise
    except DECODER_ERRORS as error:
        if file.failure is None:
            raise InputError(f"{file.name} is a damaged TIFF: {type(error).__name__}: {error}") from error
    if file.failure is not None:
        raise file.failure
    directory = directories[0]
    nodata = _nodata(directory, binary, image.dtype)
    image.fill = 0 if nodata is None else nodata  # as in GDAL
    gdal = GdalMetadata.from_xml(directory.text(binary, GDAL_METADATA) or "")
    facts = Facts(
        name=file.name,
        size=(image.height, image.width),
        dtype=image.dtype,
        descriptions=tuple(gdal.descriptions.get(band) or None for band in range(image.planes * image.samples)),
        nodata=nodata,
        georeference=_georeference(directory, binary),
        metadata={**gdal.items, **_texts(directory, binary)},
        alpha=alpha,
    )
    return _OpenTiff(facts, file, image, mask)


class _OpenTiff(OpenRaster):
    """The first image of a TIFF."""

    def __init__(self, facts: Facts, file: SharedFile, image: Segments, mask: Segments | None) -> None:
        super().__init__(facts, image.block, image.bytes * image.planes)
        self._file = file
        self._image = image
        self._mask = mask

    @property
    def decoded(self) -> NDArray[np.int64]:
        """How often each segment was decoded: [planes, rows, columns] of the image in one row, then of its mask."""
        counts = [self._image.decoded.ravel()]
        if self._mask is not None:
            counts.append(self._mask.decoded.ravel())
        return np.concatenate(counts)

    def close(self) -> None:
        """Let the file go; any number of times."""
        super().close()
        self._file.close()

    def _arrays(
        self, windows: Sequence[Window], places: Sequence[int], *, masked: bool
    ) -> Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]:
        alpha = self.alpha - 1 if masked and self.alpha is not None and self._mask is None else None
        bands = list(dict.fromkeys([*places, *([] if alpha is None else [alpha])]))  # each band is read once
        order = [bands.index(place) for place in places]
        plain = order == list(range(len(order)))
        with ExitStack() as stack:
            images = stack.enter_context(closing(read_windows(self._image, windows, bands, self._file.threads)))
            masks = None
            if masked and self._mask is not None:
                masks = stack.enter_context(closing(read_windows(self._mask, windows, [0], self._file.threads)))
            for array in images:
                mask = None
                if masks is not None:
                    mask = next(masks)[0] != 0
                elif alpha is not None:
                    mask = array[bands.index(alpha)] != 0
                yield array[: len(order)] if plain else array[order], mask


def _page(tiff: tifffile.TiffFile, number: int) -> tifffile.TiffPage:
    page = tiff.pages[number]
    if not isinstance(page, tifffile.TiffPage):
        raise TypeError(f"directory {number} is not parsed")
    return page


def _nodata(directory: Directory, file: BinaryIO, dtype: DTypeLike) -> float | None:
    text = directory.text(file, GDAL_NODATA)
    return None if text is None else parse_nodata(text, dtype)


def _alpha(page: tifffile.TiffPage, name: str) -> int | None:
    """The number, from 1, of the alpha band; libtiff too refuses a file that says more of bands than it has."""
    first = page.samplesperpixel - len(page.extrasamples)
    if first < 0:
        raise InputError(
            f"{name} is a damaged TIFF: it says of {len(page.extrasamples)} bands what they are (tag ExtraSamples), and"
            f" has {page.samplesperpixel}; write it anew"
        )
    for place, kind in enumerate(page.extrasamples):
        if int(kind) in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA):
            return first + place + 1
    return None


def _mask(tiff: tifffile.TiffFile, image: Segments, file: SharedFile) -> Segments | None:
    """The mask that GDAL keeps in a directory of its own (its RFC 15)."""
    for number in range(1, len(tiff.pages)):
        page = _page(tiff, number)
        same_size = (page.imagelength, page.imagewidth) == (image.height, image.width)
        if int(page.subfiletype) == _MASK_OF_FULL_SIZE and same_size:
            return Segments(page, file)
    return None


def _georeference(directory: Directory, file: BinaryIO) -> Georeference | None:
    return Georeference.from_tags(tag for code in sorted(GEO_TAGS) if (tag := directory.tag(file, code)) is not None)


def _texts(directory: Directory, file: BinaryIO) -> dict[str, str]:
    found = {name: directory.text(file, code) for name, code in TEXT_TAGS.items()}
    return {name: text for name, text in found.items() if text}
