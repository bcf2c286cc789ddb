"""Read TIFF files window by window: tifffile decodes the pixels, this module reads GeoTIFF's and GDAL's tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import tifffile
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.bands import is_alpha
from vllm_mmout.geo.raster.files import MASK, PAM, REMEDY, Neighbours, SharedFile
from vllm_mmout.geo.raster.formats import is_tiff
from vllm_mmout.geo.raster.georeference import GEO_TAGS, Georeference
from vllm_mmout.geo.raster.nodata import parse_nodata
from vllm_mmout.geo.raster.orientation_and_palette import ORIENTATION_TAG, orientation_facts
from vllm_mmout.geo.raster.packing_tags import packing_of_pam, packing_of_tags
from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.segmented_raster import OpenSegments
from vllm_mmout.geo.raster.segments import DECODER_ERRORS, Segments, UnknownStorageError
from vllm_mmout.geo.raster.sequence import read_windows
from vllm_mmout.geo.raster.sidecars import Pam, placed, read_pam
from vllm_mmout.geo.raster.tags import GDAL_METADATA, GDAL_NODATA, TEXT_TAGS, Directory, GdalMetadata, read_directories
from vllm_mmout.geo.raster.tiff_colours import palette_of
from vllm_mmout.geo.raster.unread_formats import looks_like
from vllm_mmout.geo.raster.windowed import OpenRaster

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segmented_image import SegmentedImage

_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_RGB, _YCBCR = 2, 6
_OVERVIEW, _MASK_OF_FULL_SIZE = 1, 4
_SUBFILE_TYPE, _WIDTH, _HEIGHT = 254, 256, 257
_SHARED_MASK_FLAG = 2
"""Bit of GDAL's tag ``INTERNAL_MASK_FLAGS_1`` that is set if a single mask applies to all bands (GDAL RFC 15)."""


def open_tiff(file: SharedFile, neighbours: Neighbours | None = None) -> OpenRaster:
    """Open the first image of a TIFF, with its mask and the sidecar files (such as ``.aux.xml``) in ``neighbours``."""
    binary = cast("BinaryIO", file)
    directory, *others = read_directories(binary, file.name)
    gdal = GdalMetadata.from_xml(directory.text(binary, GDAL_METADATA) or "")
    with _parsed_by_tifffile(file) as tiff:
        page = _page(tiff, 0)
        image = Segments(page, file)
        alpha = _alpha(page, gdal, file.name)
        inner_mask = _mask(tiff, image, file)
        palette = palette_of(page)
    mask = None if inner_mask is None else _Mask(inner_mask)
    nodata_text = directory.text(binary, GDAL_NODATA)
    nodata, assumed = _nodata_of_tag(nodata_text or "", image.dtype, file.name)
    georeference = Georeference.from_tags(filter(None, (directory.tag(binary, code) for code in sorted(GEO_TAGS))))
    bands = image.planes * image.samples
    image.fill = 0 if nodata is None else nodata  # as in GDAL
    packing = packing_of_tags(gdal, bands)
    pam_file = None if neighbours is None else neighbours.appended(PAM)
    if neighbours is not None and (pam_file is not None or georeference is None or georeference.transform is None):
        pam = read_pam(pam_file, neighbours.name)
        georeference = placed(georeference, pam, neighbours)
        nodata = _nodata_of_pam(pam, nodata, image.dtype, _data_bands(bands, alpha), file.name)
        packing = packing_of_pam(pam, packing, bands)
    if mask is None and neighbours is not None:
        mask = _mask_beside(neighbours, (image.height, image.width), bands)
    orientation, as_stored = orientation_facts(directory.number(binary, ORIENTATION_TAG))
    images = 1 + sum(_is_further_image(other, directory, binary) for other in others)
    texts = {name: directory.text(binary, code) for name, code in TEXT_TAGS.items()}
    return _OpenTiff(
        file,
        image,
        mask,
        name=file.name,
        size=(image.height, image.width),
        dtype=image.dtype,
        descriptions=tuple(gdal.descriptions.get(band) or None for band in range(bands)),
        nodata=nodata,
        georeference=georeference,
        metadata={**gdal.items, **{name: text for name, text in texts.items() if text}, **orientation},
        alpha=alpha,
        palette=palette,
        images=images,
        packing=packing,
        assumed=(*assumed, *as_stored, *filter(None, [first_of(images)])),
        colours=_colours(page, gdal, bands),
        interleaved=image.planes == 1 and bands > 1,
    )


def first_of(images: int) -> str:
    """Return a notice that only the first of ``images`` images in a file is read, or "" if the file has one image."""
    if images == 1:
        return ""
    return (
        f"the file holds {images} images (pages), and only the first is read, as GDAL does; if they are the bands, give"
        " them as one array [bands, height, width], as tifffile.imread reads them"
    )


def _is_further_image(other: Directory, first: Directory, file: BinaryIO) -> bool:
    """Return whether the TIFF directory ``other`` holds an image as large as ``first``, and no mask or overview."""
    kind = int(other.number(file, _SUBFILE_TYPE) or 0)
    sizes = [(each.number(file, _HEIGHT), each.number(file, _WIDTH)) for each in (other, first)]
    return not kind & (_OVERVIEW | _MASK_OF_FULL_SIZE) and sizes[0] == sizes[1]


_LEADING_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)


def _nodata_of_tag(text: str, dtype: np.dtype[Any], name: str) -> tuple[float | None, tuple[str, ...]]:
    """Parse GDAL's nodata tag as GDAL does. Return the value, and a warning if ``text`` is not a number."""
    text = text.strip(" \0")
    try:
        if text:
            float(text)
    except ValueError:
        leading = _LEADING_NUMBER.match(text)
        number = "0" if leading is None else leading[0]
        sentence = (
            f"{PurePath(name).name} states the nodata {text[:40]!r}, which is not a number; {number} is used, as in"
            " GDAL. Set nodata=... if the value is a different one."
        )
        return parse_nodata(number, dtype), (sentence,)
    return parse_nodata(text, dtype), ()


@dataclass(frozen=True, slots=True)
class _Mask:
    """Validity mask of a raster, stored as a separate image. A pixel is valid where the mask is not 0."""

    segments: Segments
    file: SharedFile | None = None
    """Separate file that holds the mask, or None if the mask is in the same file as the raster."""
    by_band: bool = False
    """True if the mask file has one mask for each band of the raster, False if one mask applies to all bands."""

    def bands(self, places: Sequence[int], alpha: int | None) -> list[int]:
        """Return the indices (from 0) of the masks for the band indices ``places``. Skip the mask of the alpha band.

        The result is [0] if all bands share one mask, or if only the alpha band is given.
        """
        return [place for place in dict.fromkeys(places) if place + 1 != alpha] or [0] if self.by_band else [0]


class _OpenTiff(OpenSegments):
    def __init__(self, file: SharedFile, image: Segments, mask: _Mask | None, **facts: Any) -> None:
        facts |= {"block": image.block, "block_bytes": image.bytes * image.planes}
        super().__init__(masked_by_alpha=mask is None, **facts)
        self._file = file
        self._image_segments = image
        self._mask = mask

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Decode counts, int64 [n]: how often each strip or tile of the image and then of the mask was decoded."""
        images = [self._image_segments, *([] if self._mask is None else [self._mask.segments])]
        return np.concatenate([image.decoded.ravel() for image in images])

    def close(self) -> None:
        """Close the TIFF and its separate mask file, if there is one. May be called repeatedly."""
        super().close()
        self._file.close()
        if self._mask is not None and self._mask.file is not None:
            self._mask.file.close()

    def _image(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]]:
        return self._image_segments, places

    def _masks(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]] | None:
        return None if self._mask is None else (self._mask.segments, self._mask.bands(places, self.alpha))


@contextmanager
def _parsed_by_tifffile(file: SharedFile) -> Iterator[tifffile.TiffFile]:
    """Yield a TIFF parsed by tifffile. Raise InputError if parsing fails, or ``file.failure`` if reading fails."""
    file.seek(0)
    try:
        with tifffile.TiffFile(cast("BinaryIO", file)) as tiff:
            yield tiff
    except InputError:
        raise
    except DECODER_ERRORS as error:
        if file.failure is None:
            raise InputError(f"{file.name} is a damaged TIFF: {type(error).__name__}: {error}") from error
    if file.failure is not None:
        raise file.failure


def _page(tiff: tifffile.TiffFile, number: int) -> tifffile.TiffPage:
    page = tiff.pages[number]
    if not isinstance(page, tifffile.TiffPage):
        raise TypeError(f"directory {number} is not parsed")
    return page


def _alpha(page: tifffile.TiffPage, gdal: GdalMetadata, name: str) -> int | None:
    """Return the number (from 1) of the alpha band of a TIFF, or None if it has none.

    GDAL tags any file of four uint8 bands as RGB with alpha. The tagged band does not count as alpha if GDAL's
    metadata gives it another colour, or if its description names something else ("NIR").
    """
    first = page.samplesperpixel - len(page.extrasamples)
    if first < 0:
        raise InputError(
            f"{name} is a damaged TIFF: its tag ExtraSamples describes {len(page.extrasamples)} bands, but it has only"
            f" {page.samplesperpixel}; rewrite the file"
        )
    for band, kind in enumerate(page.extrasamples, start=first):
        tagged = int(kind) in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA) and gdal.colours.get(band, "Alpha") == "Alpha"
        if tagged and is_alpha(gdal.descriptions.get(band)):
            return band + 1
    return None


def _colours(page: tifffile.TiffPage, gdal: GdalMetadata, count: int) -> tuple[str | None, ...]:
    """Return the colour name of each band. GDAL's metadata takes precedence over the TIFF's photometric tag."""
    colours: dict[int, str] = {}
    if page.photometric in (_RGB, _YCBCR) and count >= len("rgb"):
        colours = dict(enumerate(("red", "green", "blue")))
    colours |= {band: text.casefold() for band, text in gdal.colours.items()}
    return tuple(colours.get(band) for band in range(count)) if colours else ()


def _mask(tiff: tifffile.TiffFile, image: Segments, file: SharedFile) -> Segments | None:
    """Return the validity mask stored as a further image of the TIFF (GDAL RFC 15), or None if the mask is missing."""
    for number in range(1, len(tiff.pages)):
        page = _page(tiff, number)
        same_size = (page.imagelength, page.imagewidth) == (image.height, image.width)
        if int(page.subfiletype) == _MASK_OF_FULL_SIZE and same_size:
            return Segments(page, file)
    return None


def with_neighbours(picture: Raster, neighbours: Neighbours, *, world_first: bool) -> Raster:
    """Return a picture with the georeference, nodata, mask, scale and offset of sidecar files such as ``.aux.xml``."""
    pam = read_pam(neighbours.appended(PAM), neighbours.name)
    data_bands = _data_bands(picture.bands, picture.alpha)
    nodata = _nodata_of_pam(pam, picture.nodata, picture.array.dtype, data_bands, neighbours.name)
    valid = picture.mask
    mask = _mask_beside(neighbours, (picture.height, picture.width), picture.bands)
    if mask is not None and mask.file is not None:
        with closing(mask.file):
            whole = Window(0, 0, picture.height, picture.width)
            mask_bands = mask.bands([band - 1 for band in data_bands], picture.alpha)
            valid = (next(read_windows(mask.segments, [whole], mask_bands)) != 0).all(axis=0)
    packing = packing_of_pam(pam, picture.packing, picture.bands)
    place = placed(picture.georeference, pam, neighbours, world_first=world_first)
    return replace(picture, georeference=place, nodata=nodata, mask=valid, packing=packing)


def _data_bands(count: int, alpha: int | None) -> list[int]:
    return [band for band in range(1, count + 1) if band != alpha]


def _mask_beside(neighbours: Neighbours, size: tuple[int, int], bands: int) -> _Mask | None:
    """Open the mask file ``NAME.tif.msk`` beside a raster. Return None if it is missing or not marked as a mask."""
    file = neighbours.appended(MASK)
    if file is None:
        return None
    with ExitStack() as stack:
        stack.callback(file.close)
        head = file.read_at(0, 512)
        if not is_tiff(head):
            raise InputError(
                f"{file.name} should be the mask of {neighbours.name}, but is {looks_like(head)}; {REMEDY}"
            )
        directory, *_ = read_directories(cast("BinaryIO", file), file.name)
        with _parsed_by_tifffile(file) as tiff:
            segments = Segments(_page(tiff, 0), file)
        items = GdalMetadata.from_xml(directory.text(cast("BinaryIO", file), GDAL_METADATA) or "").items
        flags = items.get("INTERNAL_MASK_FLAGS_1", "")
        if not flags.isdecimal():  # not a mask, for GDAL either
            return None
        by_band = not int(flags) & _SHARED_MASK_FLAG
        masks = segments.planes * segments.samples
        if (segments.height, segments.width) != size or (by_band and masks < bands):
            raise InputError(
                f"{file.name} has {segments.height} x {segments.width} pixels and {masks} bands, and cannot be the mask"
                f" of {neighbours.name}, which has {size[0]} x {size[1]} and {bands}; {REMEDY}"
            )
        stack.pop_all()  # the raster closes the file
        return _Mask(segments, file, by_band)


def _nodata_of_pam(pam: Pam, own: float | None, dtype: np.dtype[Any], bands: Sequence[int], name: str) -> float | None:
    """Return the nodata value that a ``.aux.xml`` file (GDAL's PAM) states, or ``own`` if the file states no value."""
    if not pam.nodata:
        return own
    values = [parse_nodata(pam.nodata[band], dtype) if band in pam.nodata else own for band in bands]
    if len({repr(value) for value in values}) > 1:
        raise UnknownStorageError(
            f"{name}{PAM} states different nodata values for different bands ({', '.join(map(str, values[:9]))}); set"
            " one value for all, for example with gdal_edit.py -a_nodata"
        )
    return values[0] if values else own
