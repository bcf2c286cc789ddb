"""What a GeoTIFF says beside its pixels, told to GDAL as a VRT: a text that names the pixels' file, and all about them.

https://gdal.org/drivers/raster/vrt.html has the elements. rasterio's own setters are not used: they take a nodata of 64
bits for a float, and GDAL's GTiff takes blocks of zeros for nodata that is set after they were written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from numpy.typing import DTypeLike, NDArray
from PIL import Image
from tifffile import TiffFile

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.raster import as_pixels_have_it, format_nodata
from vllm_mmout.geo.raster.tags import GDAL_METADATA, checked_xml

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference

BLOCK_SIDE = 512
"""Height and width of a block, where the raster is larger than one."""

_LARGEST = 8
"""Bytes of a number; GDAL reads no longer ones."""
_SPLITTING = str.maketrans({":": "\ue03a", "=": "\ue03d"})
"""What GDAL takes for the end of an item's name, and what stands for it meanwhile."""


class RasterMetadata(TypedDict, total=False):
    """What is known of a result beside its pixels, as an output and its file take it; all of it may be left out."""

    nodata: float | None
    """Value that means "nothing known here"."""
    georeference: Georeference | None
    """Where it lies."""
    band_names: Sequence[str | None]
    """One a band, None for a band without; GDAL's descriptions."""
    units: Sequence[str | None]
    """Unit of each band's values ("Mg/ha"), None for a band without."""
    class_names: Sequence[str] | None
    """Name of each class, from 0; in a GeoTIFF items CLASS_0, CLASS_1, ... of the first band."""
    palette: NDArray[np.uint8] | None
    """uint8 [n, 3], colour of each class, from 0; in a GeoTIFF the colour table of one band of uint8 (the first 256),
    left out of others, which cannot have one."""
    metadata: Mapping[str, str] | None
    """GDAL's metadata items; those named TIFFTAG_DATETIME and the like become the TIFF tags of that name."""


def are_classes(
    dtype: np.dtype[Any], class_names: Sequence[str] | None = None, palette: NDArray[np.uint8] | None = None
) -> bool:
    """Whether numbers name classes, which have no mean: integers that have names or colours, and bool."""
    named = class_names is not None or palette is not None
    return dtype == np.bool_ or (dtype.kind in "iu" and named)


def stored_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype in which a GeoTIFF holds such pixels: bool becomes uint8, byte order that of the machine."""
    found = np.dtype(dtype)
    if found == np.bool_:
        return np.dtype(np.uint8)
    if found.kind not in "uif":
        raise SaveError(f"a GeoTIFF takes integers or floating point, got {found}")
    if found.itemsize > _LARGEST:
        raise SaveError(f"a GeoTIFF takes numbers of up to {8 * _LARGEST} bits, got {found}; convert them")
    return found.newbyteorder("=")


def block_side(size: tuple[int, int]) -> int:
    """Height and width of the blocks of a raster: 512, or where it is smaller a multiple of 16, from 128."""
    return min(BLOCK_SIDE, max(128, -(-max(size) // 16) * 16))


def cog_options(shape: tuple[int, int, int], dtype: DTypeLike, told: RasterMetadata) -> dict[str, str]:
    """The options of GDAL's COG driver, for pixels [bands, height, width] as they were given.

    https://gdal.org/drivers/raster/cog.html has them.
    """
    given = np.dtype(dtype)
    classes = are_classes(given, told.get("class_names"), told.get("palette"))
    half = given.kind == "f" and given.itemsize == 2 and shape[0] == 1  # GDAL 3.10 fills tiles of several with garbage
    predicted = not half and (given.kind == "f" or given.itemsize < 8)  # as every version of GDAL has it
    options = {
        "COMPRESS": "DEFLATE",
        "LEVEL": "3" if given.itemsize == 1 else "1",  # more gains a few hundredths and takes half as much time again
        "PREDICTOR": "YES" if predicted else "NO",
        "BLOCKSIZE": str(block_side(shape[1:])),
        "OVERVIEW_RESAMPLING": "NEAREST" if classes else "AVERAGE",
        "BIGTIFF": "IF_SAFER",
    }
    return {**options, "NBITS": "16"} if half else options


def source_xml(
    pixels: str,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    told: RasterMetadata,
    statistics: Sequence[Mapping[str, str]] = (),
) -> str:
    """The VRT of a raster [bands, height, width] whose pixels, of a `stored_dtype`, lie in a file."""
    bands, height, width = shape
    if unknown := told.keys() - RasterMetadata.__annotations__:
        known = ", ".join(RasterMetadata.__annotations__)
        raise TypeError(f"a GeoTIFF has no {', '.join(sorted(unknown))}; known: {known}")
    for name, texts in (("band_names", told.get("band_names")), ("units", told.get("units"))):
        if texts and len(texts) != bands:
            raise SaveError(f"{name} must be one a band, {bands}, got {len(texts)}")
    root = Element("VRTDataset", rasterXSize=str(width), rasterYSize=str(height))
    items = {name: str(text) for name, text in (told.get("metadata") or {}).items() if name != "AREA_OR_POINT"}
    georeference = told.get("georeference")
    if georeference is not None:
        _place(root, georeference)
        items["AREA_OR_POINT"] = "Point" if georeference.pixel_is_point else "Area"
    _items(root, items)
    for number in range(bands):
        band = _band(root, number, shape, dtype, told)
        classes = {f"CLASS_{value}": name for value, name in enumerate(told.get("class_names") or ()) if number == 0}
        _items(band, {**classes, **(statistics[number] if statistics else {})})
        source = SubElement(band, "SimpleSource")
        SubElement(source, "SourceFilename", relativeToVRT="0", shared="0").text = pixels
        SubElement(source, "SourceBand").text = str(number + 1)
    return tostring(root, encoding="unicode")


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
    root: Element, number: int, shape: tuple[int, int, int], dtype: np.dtype[Any], told: RasterMetadata
) -> Element:
    """One band, from 0, without its items."""
    nodata, palette, side = told.get("nodata"), told.get("palette"), str(block_side(shape[1:]))
    kind = "Float32" if dtype == np.float16 else "Byte" if dtype == np.uint8 else dtype.name.title().replace("Ui", "UI")
    band = SubElement(root, "VRTRasterBand", dataType=kind, band=str(number + 1), blockXSize=side, blockYSize=side)
    for name, texts in (("Description", told.get("band_names")), ("UnitType", told.get("units"))):
        text = texts[number] if texts else None
        if text:
            SubElement(band, name).text = checked_xml(name.upper(), text)
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


def restore_names(file: BinaryIO | str, told: RasterMetadata) -> None:
    """Give items their names in a file that GDAL wrote: it ends a name at the first ":" or "="."""
    if any(name.translate(_SPLITTING) != name for name in told.get("metadata") or ()):
        with TiffFile(file, mode="r+") as tiff:
            tag = tiff.pages.first.tags[GDAL_METADATA]
            xml: str = tag.value
            for mark, standin in _SPLITTING.items():
                xml = xml.replace(standin, chr(mark))
            tag.overwrite(xml.encode())


def is_whole(file: str) -> bool:
    """Whether all pixels of a file are there: GDAL says nothing where its last bytes found no room."""
    size = Path(file).stat().st_size
    with TiffFile(file) as tiff:
        return all(np.add(page.dataoffsets, page.databytecounts).max() <= size for page in tiff.pages)


def statistics(name: str, dtype: np.dtype[Any], nodata: float | None) -> list[dict[str, str]]:
    """Statistics of each band. GDAL's own leave out neither the nodata of a VRT nor infinities, nor always NaN."""
    import rasterio

    with rasterio.open(name) as file, np.errstate(all="ignore"):
        hidden = math.nan if nodata is None else np.dtype(file.dtypes[0]).type(as_pixels_have_it(nodata, dtype))
        return [_of_band(file, band, hidden) for band in file.indexes]


def _of_band(file: Any, band: int, nodata: float | np.generic) -> dict[str, str]:
    """Statistics of a band as GDAL writes them: of all pixels but NaN and nodata; none where they are not finite."""
    found = []
    for _, window in file.block_windows(band):
        plane = file.read(band, window=window)
        values, times = plane.ravel(), np.ones(1, np.intp)
        if plane.dtype == np.uint8:
            times = np.array(Image.fromarray(plane).histogram())  # three times as fast as numpy's
            values, times = np.flatnonzero(times), times[times > 0]
        seen = ~np.isnan(values) & (values != nodata)
        values, times = values[seen].astype(np.float64), np.broadcast_to(times, seen.shape)[seen]
        if values.size:
            low = values.min()  # what is alike everywhere has no deviation at all
            mean = low + np.average(values - low, weights=times)
            square = np.average(np.square(values - mean), weights=times)
            found.append((int(times.sum()), low, values.max(), mean, square))
    if not found:
        return {}
    counts, lows, highs, means, squares = (np.array(numbers) for numbers in zip(*found, strict=True))
    low, count, pixels = lows.min(), int(counts.sum()), file.height * file.width
    mean = low + np.average(means - low, weights=counts)
    deviation = math.sqrt(np.average(squares + np.square(means - mean), weights=counts))
    numbers = {"MINIMUM": low, "MAXIMUM": highs.max(), "MEAN": mean, "STDDEV": deviation}
    if not np.isfinite(list(numbers.values())).all():
        return {}
    texts = {name: f"{number:.14g}" for name, number in numbers.items()}
    percent = f"{100 * count / pixels:.4g}"
    texts["VALID_PERCENT"] = "99.999" if percent == "100" and count < pixels else percent
    return {f"STATISTICS_{name}": text for name, text in texts.items()}
