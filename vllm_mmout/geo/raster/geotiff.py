"""Describe a raster and its metadata as a VRT, an XML file that GDAL can convert to a GeoTIFF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tifffile import TiffFile

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.nodata import as_pixels_have_it, format_nodata
from vllm_mmout.geo.raster.tags import GDAL_METADATA, checked_xml

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference

BLOCK_SIDE = 512
"""Height and width of a GeoTIFF's blocks in pixels, unless the whole raster is smaller."""

_BLOCK_VALUES = 2**22
"""Maximum number of values in a block of all bands, such as 16 bands of 512 x 512 pixels. GDAL writes all bands of a
COG's block together."""
_LEAST_SIDE = 16
"""Smallest height and width of a block in pixels that TIFF allows."""
_LARGEST = 8
"""Largest item size, in bytes, of a dtype that GDAL can write."""
_SPLITTING = str.maketrans({":": "\ue03a", "=": "\ue03d"})
"""Translation table (`str.translate`) from ":" and "=" to placeholders, for the names of metadata items.

GDAL would cut a name at ":" or "=". `restore_names` replaces the placeholders in the written file."""


class RasterMetadata(TypedDict, total=False):
    """Metadata of a raster to write. All keys are optional."""

    nodata: float | None
    """Value of pixels without a result."""
    georeference: Georeference | None
    """Coordinate system and position of the raster."""
    band_names: Sequence[str | None]
    """Name of each band, or None for a band without a name. GDAL calls the names descriptions."""
    units: Sequence[str | None]
    """Unit of each band's values ("Mg/ha"), or None for a band without a unit."""
    scales: Sequence[float]
    """Factor of each band: value = pixel * factor. Empty if pixels are the values themselves."""
    nearest: bool
    """Whether overviews must copy the nearest pixels instead of averaging pixels."""
    class_names: Sequence[str] | None
    """Names of class 0, class 1, ... A GeoTIFF holds the names as metadata items CLASS_0, CLASS_1, ... of band 1."""
    palette: NDArray[np.uint8] | None
    """Colours of class 0, class 1, ... as red, green and blue, uint8 [number of classes, 3].

    The palette is written only if the raster has a single band, of dtype uint8. At most 256 colours are written.
    """
    metadata: Mapping[str, str] | None
    """GDAL's metadata items. Items such as TIFFTAG_DATETIME become the TIFF tags of the same name."""


def are_classes(
    dtype: np.dtype[Any], class_names: Sequence[str] | None = None, palette: NDArray[np.uint8] | None = None
) -> bool:
    """Return whether pixels are class numbers, which must not be averaged.

    Pixels of dtype bool are class numbers. Integers are class numbers if there are class names or a palette.
    """
    named = class_names is not None or palette is not None
    return dtype == np.bool_ or (dtype.kind in "iu" and named)


def stored_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of pixels once stored in a GeoTIFF: uint8 for bool, else ``dtype`` in native byte order.

    Raises:
        SaveError: a GeoTIFF cannot hold such pixels.

    """
    pixels = np.dtype(dtype)
    if pixels == np.bool_:
        return np.dtype(np.uint8)
    if pixels.kind not in "uif":
        raise SaveError(f"a GeoTIFF takes integers or floating point, got {pixels}")
    if pixels.itemsize > _LARGEST:
        raise SaveError(f"a GeoTIFF takes numbers of up to {8 * _LARGEST} bits, got {pixels}; convert them")
    return pixels.newbyteorder("=")


def block_limit(bands: int) -> int:
    """Return the largest side of a block in pixels, so that a block of ``bands`` bands has at most 2**22 values."""
    side = BLOCK_SIDE
    while bands * side**2 > _BLOCK_VALUES and side > _LEAST_SIDE:
        side //= 2
    return side


def block_side(shape: tuple[int, int, int]) -> int:
    """Return the side in pixels of the square blocks of a raster (bands, height, width), a multiple of 16."""
    return min(block_limit(shape[0]), max(128, -(-max(shape[1:]) // 16) * 16))


def overview_sizes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the (height, width) of each overview that GDAL's COG driver makes of a raster of ``size``."""
    sizes: list[tuple[int, int]] = []
    height, width = size
    while max(height, width) > BLOCK_SIDE:
        height, width = max(1, height // 2), max(1, width // 2)
        sizes.append((height, width))
    return sizes


def cog_options(shape: tuple[int, int, int], dtype: DTypeLike, metadata: RasterMetadata) -> dict[str, str]:
    """Return the options to pass to GDAL's COG driver (https://gdal.org/drivers/raster/cog.html) for a raster.

    Args:
        shape: (bands, height, width) of the pixels.
        dtype: dtype of the pixels before `stored_dtype`.
        metadata: the raster's metadata, which tells whether pixels are class numbers.

    """
    pixels = np.dtype(dtype)
    classes = are_classes(pixels, metadata.get("class_names"), metadata.get("palette"))
    nearest = classes or metadata.get("nearest", False)
    half = pixels.kind == "f" and pixels.itemsize == 2 and shape[0] == 1  # GDAL 3.10 corrupts multi-band float16 tiles
    predicted = not half and (pixels.kind == "f" or pixels.itemsize < 8)  # supported by every GDAL version
    options = {
        "COMPRESS": "DEFLATE",
        "LEVEL": "3" if pixels.itemsize == 1 else "1",  # higher levels save a few percent and take 50 % longer
        "PREDICTOR": "YES" if predicted else "NO",
        "BLOCKSIZE": str(block_side(shape)),
        "OVERVIEW_RESAMPLING": "NEAREST" if nearest else "AVERAGE",
        "BIGTIFF": "IF_SAFER",
    }
    return {**options, "NBITS": "16"} if half else options


def source_xml(
    pixels: str | None,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    metadata: RasterMetadata,
    *,
    items_of_bands: Sequence[Mapping[str, str]] = (),
    overviews: Sequence[str] = (),
) -> str:
    """Return the XML of a GDAL VRT that names a raster's pixel file and holds all its metadata.

    Args:
        pixels: name of the file that holds the pixels; None if all pixels are nodata, or 0 without nodata.
        shape: (bands, height, width) of the raster.
        dtype: dtype of the file's pixels (see `stored_dtype`).
        metadata: the raster's metadata.
        items_of_bands: further metadata items of each band, such as its statistics; empty for none.
        overviews: names of the raster files that are the overviews; empty to let GDAL make them.

    Raises:
        SaveError: the metadata does not fit the raster or a GeoTIFF.

    """
    bands, height, width = shape
    if unknown := metadata.keys() - RasterMetadata.__annotations__:
        known_keys = ", ".join(RasterMetadata.__annotations__)
        raise TypeError(f"unknown metadata of a GeoTIFF: {', '.join(sorted(unknown))}; known: {known_keys}")
    entries: dict[str, Sequence[Any] | None] = {
        "band_names": metadata.get("band_names"),
        "units": metadata.get("units"),
        "scales": metadata.get("scales"),
    }
    for name, values in entries.items():
        if values and len(values) != bands:
            raise SaveError(f"{name} must have one entry per band, {bands}, got {len(values)}")
    root = Element("VRTDataset", rasterXSize=str(width), rasterYSize=str(height))
    items = {name: str(text) for name, text in (metadata.get("metadata") or {}).items() if name != "AREA_OR_POINT"}
    georeference = metadata.get("georeference")
    if georeference is not None:
        _place(root, georeference)
        items["AREA_OR_POINT"] = "Point" if georeference.pixel_is_point else "Area"
    _items(root, items)
    for number in range(bands):
        band = _band(root, number, shape, dtype, metadata)
        classes = {
            f"CLASS_{value}": name for value, name in enumerate(metadata.get("class_names") or ()) if number == 0
        }
        _items(band, {**classes, **(items_of_bands[number] if items_of_bands else {})})
        if pixels is not None:
            _source(band, "SimpleSource", pixels, number)
        for overview in overviews:
            _source(band, "Overview", overview, number)
    return tostring(root, encoding="unicode")


def _source(band: Element, kind: str, name: str, number: int) -> None:
    """Add a source file to the XML element of a VRT band.

    The source is band ``number`` (from 0) of the raster file ``name``. ``kind`` is the tag of the new child element.
    """
    source = SubElement(band, kind)
    SubElement(source, "SourceFilename", relativeToVRT="0", shared="0").text = name
    SubElement(source, "SourceBand").text = str(number + 1)


def _place(root: Element, georeference: Georeference) -> None:
    place = georeference.to_rasterio()
    crs = place["crs"].to_wkt() if "crs" in place else ""
    if "gcps" in place:
        points = SubElement(root, "GCPList", Projection=crs)
        for p in georeference.gcps:
            SubElement(points, "GCP", Id="", Pixel=repr(p.col), Line=repr(p.row), X=repr(p.x), Y=repr(p.y), Z=repr(p.z))
    elif crs:
        SubElement(root, "SRS").text = crs
    if "transform" in place:
        SubElement(root, "GeoTransform").text = ",".join(map(repr, place["transform"].to_gdal()))
    if "rpcs" in place:
        _items(root, place["rpcs"].to_gdal(), domain="RPC")


def _band(
    root: Element, number: int, shape: tuple[int, int, int], dtype: np.dtype[Any], metadata: RasterMetadata
) -> Element:
    """Add an XML element for band ``number`` (from 0) to ``root``, and return the new element."""
    nodata, palette, side = metadata.get("nodata"), metadata.get("palette"), str(block_side(shape))
    kind = "Float32" if dtype == np.float16 else "Byte" if dtype == np.uint8 else dtype.name.title().replace("Ui", "UI")
    band = SubElement(root, "VRTRasterBand", dataType=kind, band=str(number + 1), blockXSize=side, blockYSize=side)
    for name, texts in (("Description", metadata.get("band_names")), ("UnitType", metadata.get("units"))):
        text = texts[number] if texts else None
        if text:
            SubElement(band, name).text = checked_xml(name.upper(), text)
    if scales := metadata.get("scales"):
        SubElement(band, "Scale").text = repr(float(scales[number]))
    if nodata is not None:
        SubElement(band, "NoDataValue").text = format_nodata(as_pixels_have_it(nodata, dtype), dtype)
    if palette is not None and shape[0] == 1 and dtype == np.uint8:
        _colours(band, palette)
    elif shape[0] == 3 and dtype == np.uint8:
        SubElement(band, "ColorInterp").text = ("Red", "Green", "Blue")[number]
    elif number == 0:
        SubElement(band, "ColorInterp").text = "Gray"
    return band


def _colours(band: Element, palette: NDArray[np.uint8]) -> None:
    if palette.dtype != np.uint8 or palette.ndim != 2 or palette.shape[1] != 3:
        raise SaveError(f"a palette must be uint8 [n, 3], got {palette.dtype} {list(palette.shape)}")
    SubElement(band, "ColorInterp").text = "Palette"
    table = SubElement(band, "ColorTable")
    for red, green, blue in palette[:256].tolist():
        SubElement(table, "Entry", c1=str(red), c2=str(green), c3=str(blue), c4="255")


def _items(element: Element, items: Mapping[str, str], **attributes: str) -> None:
    if items:
        metadata = SubElement(element, "Metadata", attributes)
        for name, text in items.items():
            checked_xml(name, name + text)
            SubElement(metadata, "MDI", key=name.translate(_SPLITTING)).text = text


def restore_names(file: BinaryIO | str, metadata: RasterMetadata) -> None:
    """Restore ":" and "=" in the names of a written file's metadata items.

    The file was written with placeholders, because GDAL would cut the names at these characters.
    """
    if any(name.translate(_SPLITTING) != name for name in metadata.get("metadata") or ()):
        with TiffFile(file, mode="r+") as tiff:
            tag = tiff.pages.first.tags[GDAL_METADATA]
            xml: str = tag.value
            for mark, standin in _SPLITTING.items():
                xml = xml.replace(standin, chr(mark))
            tag.overwrite(xml.encode())


def is_whole(file: str) -> bool:
    """Return whether a TIFF file is complete. If the disk becomes full, GDAL may truncate the file without an error."""
    size = Path(file).stat().st_size
    with TiffFile(file) as tiff:
        return all(np.add(page.dataoffsets, page.databytecounts).max() <= size for page in tiff.pages)
