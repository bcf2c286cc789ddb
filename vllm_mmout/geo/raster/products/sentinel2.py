"""Read the scale, offset and fill value of Sentinel-2 bands from MTD_MSIL1C.xml or MTD_MSIL2A.xml.

Since processing baseline 04.00 (January 2022) counts are 1000 higher than before, which the product states as an offset
of -1000 (S2 Products Specification Document, 14.9). Models that take counts were trained on the older counts, to which
data archives convert newer products.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.products.product_band import ProductBand, opened_metadata, wrong_metadata
from vllm_mmout.geo.raster.xml import parse_xml

_FILE: Final = re.compile(
    r"(?:L2A_)?T\d{2}[A-Z]{3}_\d{8}T\d{6}_(?P<band>B\d[\dA]|AOT|WVP)(?:_\d{2}m)?\.(?:jp2|tiff?)", re.IGNORECASE
)
_BAND_NAME: Final = re.compile(r"(?!MSK_)(?:.*[_.-])?B(?:0?[1-9]|1[0-2]|8A)(?:[_.-].*)?\.(?:jp2|tiff?)", re.IGNORECASE)
"""Pattern of file names that name a Sentinel-2 band, such as ``B02.tif``. Names of a product's masks do not match."""
_METADATA: Final = ("MTD_MSIL2A.xml", "MTD_MSIL1C.xml")
_BANDS: Final = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")
"""Sentinel-2 band names in the order of their ``band_id`` in the metadata."""
_HIGHER: Final = 5
"""Number of parent folders of an image file to search for the metadata file of a product.

In a product, the parent folders are R10m, IMG_DATA, the granule, GRANULE and the product itself.
"""
_FILL: Final = 0
_OFFSETS: Final = ("BOA_ADD_OFFSET", "RADIO_ADD_OFFSET")
_QUANTIFICATIONS: Final = ("BOA_QUANTIFICATION_VALUE", "QUANTIFICATION_VALUE")
_OTHERS: Final = {"AOT": "AOT_QUANTIFICATION_VALUE", "WVP": "WVP_QUANTIFICATION_VALUE"}


def sentinel2_band(name: str, path: Path | None) -> ProductBand | None:
    """Return the fill value, scale and offset of a Sentinel-2 file, or None if the name is not a Sentinel-2 name."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    band = match["band"].upper()
    metadata = None if path is None else _metadata_above(path)
    if metadata is not None:
        return _read(metadata, metadata.stat().st_mtime_ns).band(band)
    if band in _OTHERS:
        return ProductBand(_FILL)
    image = name[: match.start("band") - 1]
    doubt = sentinel2_doubt(
        f"{image} is of Sentinel-2, and no {' or '.join(_METADATA)} of its product was found beside its files",
        "Give it within its product, or set",
    )
    return ProductBand(_FILL, Packing(doubt=doubt))


def doubt_beside_product(name: str, path: Path | None, count: int) -> str:
    """Return a warning if a file beside a Sentinel-2 product's metadata may need the offset stated there, else "".

    The product's metadata file must state an offset. A file of several bands must be in the same folder as the metadata
    file. A file of one band, such as ``B02.tif``, may also be up to four folders below.

    Args:
        name: name of the file, which is not a file name of a Sentinel-2 product.
        path: local path of the file, or None if its folder is unknown.
        count: number of bands of the file.

    """
    if path is None or (count == 1 and _BAND_NAME.fullmatch(name) is None):
        return ""
    try:
        metadata = _metadata_above(path, _HIGHER if count == 1 else 1)
        if metadata is None:
            return ""
        product = _read(metadata, metadata.stat().st_mtime_ns)
    except (InputError, OSError):  # the input may be of another product, so it can be read nevertheless
        return ""
    offset = min(product.offsets.values(), default=0.0)
    if not offset:
        return ""
    stated = f"{metadata.name}{product.release} in {metadata.parent.name} states the offset {offset:g}"
    return sentinel2_doubt(f"{stated}, but the input's files are not named like those of its product")


def sentinel2_doubt(fact: str, remedy: str = "Set") -> str:
    """Return a warning that the stored numbers of a Sentinel-2 file may be 1000 too high. ``fact`` says why.

    Args:
        fact: beginning of the warning, which says why it is unknown whether the numbers are too high.
        remedy: beginning of the sentence that tells the user what to do.

    """
    return (
        f"{fact}, so it is unknown whether its counts are 1000 higher, as they are since processing baseline 04.00;"
        f' they were taken as stored. {remedy} scale="stored" if they are not higher. If they are, set offset=-1000, or'
        " scale=0.0001 and offset=-0.1 for a model that takes floats as reflectance, as of TerraTorch."
    )


def _metadata_above(path: Path, folders: int = _HIGHER) -> Path | None:
    for folder in list(path.absolute().parents)[:folders]:
        for name in _METADATA:
            if (folder / name).is_file():
                return folder / name
    return None


@dataclass(slots=True)
class _Metadata:
    """Contents of the metadata file of one Sentinel-2 product."""

    path: str
    quantifications: dict[str, float] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    """Number to add to the stored numbers of each band, by band name."""
    fill: float = _FILL
    baseline: str = ""

    @property
    def release(self) -> str:
        """Product version for messages, such as " (processing baseline 05.11)". Empty if the version is not stated."""
        return f" (processing baseline {self.baseline})" if self.baseline else ""

    def band(self, name: str) -> ProductBand:
        """Return the fill value, scale and offset of the band ``name``."""
        names = (_OTHERS[name],) if name in _OTHERS else _QUANTIFICATIONS
        quantification = next((self.quantifications[key] for key in names if key in self.quantifications), None)
        offset = self.offsets.get(name, 0.0)
        if quantification is None:
            raise wrong_metadata(self.path, f"has no {' or '.join(names)}")
        shift = int(offset) if offset == int(offset) else 0
        packing = Packing(
            1 / quantification, offset / quantification, f"{Path(self.path).name}{self.release}", shift=shift
        )
        return ProductBand(self.fill, packing)


@lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> _Metadata:
    """Read a product's metadata file. The result is cached by path and by ``changed``, the modification time."""
    del changed
    file = opened_metadata(path)
    if file is None:
        raise wrong_metadata(str(path), "is gone")
    try:
        return _MetadataParser(str(path)).read(file)
    finally:
        file.close()


class _MetadataParser:
    """Parser of Sentinel-2 metadata that keeps only scales, offsets, the fill value and the processing baseline."""

    def __init__(self, path: str) -> None:
        self.found = _Metadata(path)
        self._attributes: dict[str, str] = {}
        self._text: list[str] = []
        self._special = ""

    def read(self, file: object) -> _Metadata:
        parse_xml(file, self._begin, self._end, self._text.append, self._wrong)  # type: ignore[arg-type]
        return self.found

    def _wrong(self, fact: str) -> Exception:
        return wrong_metadata(self.found.path, fact)

    def _begin(self, _: str, attributes: dict[str, str]) -> None:
        self._attributes = attributes
        self._text.clear()

    def _end(self, element: str) -> None:
        name, text, metadata = element.rpartition(":")[2], "".join(self._text).strip(), self.found
        if name in (*_QUANTIFICATIONS, *_OTHERS.values()):
            metadata.quantifications[name] = self._number(name, text, zero=False)
        elif name in _OFFSETS:
            metadata.offsets[self._band(name)] = self._number(name, text)
        elif name == "SPECIAL_VALUE_TEXT":
            self._special = text
        elif name == "SPECIAL_VALUE_INDEX" and self._special == "NODATA":
            metadata.fill = self._number(name, text)
        elif name == "PROCESSING_BASELINE":
            metadata.baseline = text
        self._text.clear()

    def _band(self, name: str) -> str:
        number = self._attributes.get("band_id", "")
        if not number.isdecimal() or int(number) >= len(_BANDS):
            raise self._wrong(f"has {name} of the band {number[:20]!r}, but bands are 0 to {len(_BANDS) - 1}")
        return _BANDS[int(number)]

    def _number(self, name: str, text: str, *, zero: bool = True) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not (number or zero):
            raise self._wrong(f"has {text[:40]!r} as {name}, which must be a number{'' if zero else ' other than 0'}")
        return number
