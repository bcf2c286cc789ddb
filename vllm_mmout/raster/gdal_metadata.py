"""GDAL's conventions for what TIFF has no tags for: the XML of GDAL_METADATA and the text of GDAL_NODATA.

https://gdal.org/drivers/raster/gtiff.html describes both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr, unescape

import numpy as np

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike

GDAL_METADATA = 42112
GDAL_NODATA = 42113

TEXT_TAGS = {
    "TIFFTAG_DOCUMENTNAME": 269,
    "TIFFTAG_IMAGEDESCRIPTION": 270,
    "TIFFTAG_SOFTWARE": 305,
    "TIFFTAG_DATETIME": 306,
    "TIFFTAG_ARTIST": 315,
    "TIFFTAG_HOSTCOMPUTER": 316,
    "TIFFTAG_COPYRIGHT": 33432,
}
"""TIFF tags that GDAL shows as metadata items, by the names it gives them."""

_QUOTES = {"&quot;": '"', "&apos;": "'"}
_FEWER_DIGITS = 1e-6
"""Of itself, by how much the largest float may be missed where it is written with fewer digits."""
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold."""


@dataclass(frozen=True, slots=True)
class GdalMetadata:
    """The items of one raster.

    GDAL escapes a text before it hands it to its XML writer, and unescapes it once more after the parser: "&" stands as
    "&amp;amp;" in the file.
    """

    items: Mapping[str, str] = field(default_factory=dict)
    """Items of the raster as a whole, by name."""
    descriptions: Mapping[int, str] = field(default_factory=dict)
    """Description of a band, by its number from 0."""
    band_items: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Further items of a band, by its number from 0."""
    units: Mapping[int, str] = field(default_factory=dict)
    """Unit of a band's values, by its number from 0; GDAL calls it the unit type."""

    @classmethod
    def from_xml(cls, xml: str) -> GdalMetadata:
        """Read the tag's text; one that is not well-formed counts as empty, as in GDAL.

        Items of other domains than the default one are not read.
        """
        if "<!" in xml.replace("<!--", ""):
            return cls()  # a document type, where entities could be declared, has no place here
        try:
            root = ET.fromstring(xml)  # noqa: S314 - no entities, see above
        except ET.ParseError:
            return cls()
        items: dict[str, str] = {}
        descriptions: dict[int, str] = {}
        bands: dict[int, dict[str, str]] = {}
        units: dict[int, str] = {}
        for item in root.iter("Item"):
            name, role, sample = item.get("name"), item.get("role"), item.get("sample", "")
            text = unescape(item.text or "", _QUOTES)
            if name is None or item.get("domain"):
                continue
            if not sample:
                items[name] = text
            elif sample.isdecimal() and role == "description":
                descriptions[int(sample)] = text
            elif sample.isdecimal() and role == "unittype":
                units[int(sample)] = text
            elif sample.isdecimal() and role is None:
                bands.setdefault(int(sample), {})[name] = text
        return cls(items, descriptions, bands, units)

    def to_xml(self) -> str | None:
        """The tag's text, None if there is nothing to say.

        Raises:
            SaveError: a name or a text has characters that XML cannot hold.

        """
        lines = [_item(name, text, "") for name, text in self.items.items()]
        for band, text in self.descriptions.items():
            lines.append(_item("DESCRIPTION", text, f' sample="{band}" role="description"'))
        for band, text in self.units.items():
            lines.append(_item("UNITTYPE", text, f' sample="{band}" role="unittype"'))
        for band, items in self.band_items.items():
            lines += [_item(name, text, f' sample="{band}"') for name, text in items.items()]
        return "\n".join(["<GDALMetadata>", *lines, "</GDALMetadata>"]) + "\n" if lines else None


def parse_nodata(text: str, dtype: DTypeLike) -> float | None:
    """The value of a GDAL_NODATA tag.

    Args:
        text: the tag's text.
        dtype: type of the pixels. For integers the value is an ``int``, so that 64 bits keep every digit.

    Returns:
        The value, NaN included; None where it is no number or lies outside ``dtype``, so that no pixel can have it.

    """
    text = text.strip(" \0")
    pixels = np.dtype(dtype)
    try:
        value = int(text) if pixels.kind in "iu" and re.fullmatch(r"[+-]?\d{1,20}", text) else float(text)
    except ValueError:
        return None
    if pixels.kind in "iu":
        return int(value) if _is_integer_of(value, pixels) else None
    if not math.isfinite(value) or pixels.kind != "f":
        return value
    value = as_pixels_have_it(value, pixels)
    return float(np.array(value).astype(pixels)) if can_hold(pixels, value) else None  # as GDAL gives it


def format_nodata(value: float, dtype: DTypeLike) -> str:
    """The text of a GDAL_NODATA tag.

    Raises:
        SaveError: pixels of ``dtype`` cannot have that value.

    """
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        if not _is_integer_of(value, pixels):
            limits = np.iinfo(pixels)
            raise SaveError(f"nodata must be an integer from {limits.min} to {limits.max} for {pixels}, got {value}")
        return str(int(value))
    limit, value = _largest(pixels), as_pixels_have_it(value, pixels)
    if math.isfinite(value) and abs(value) > limit:
        raise SaveError(f"nodata must be within {-limit} and {limit} for {pixels}, or NaN, got {value}")
    return repr(float(value))


def as_pixels_have_it(value: float, dtype: DTypeLike) -> float:
    """The largest float of ``dtype`` for what comes out above it, written with fewer digits; else the value itself.

    ``-3.4028235e38`` is what many call the lowest float32, which is a little higher. GDAL takes it for that as well.
    """
    pixels = np.dtype(dtype)
    if pixels.kind not in "fc" or not math.isfinite(value):
        return value
    limit = _largest(pixels)
    missed = limit < abs(value) and math.isclose(abs(value), limit, rel_tol=_FEWER_DIGITS)
    return math.copysign(limit, value) if missed else value


def can_hold(dtype: DTypeLike, value: float) -> bool:
    """Whether a pixel of ``dtype`` can equal ``value``; NaN equals nothing."""
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        return _is_integer_of(value, pixels)
    return not math.isnan(value) and (math.isinf(value) or abs(value) <= _largest(pixels))


def _is_integer_of(value: float, pixels: np.dtype[Any]) -> bool:
    limits = np.iinfo(pixels)
    return math.isfinite(value) and limits.min <= value <= limits.max and value == int(value)


def _largest(pixels: np.dtype[Any]) -> float:
    """The largest finite value of a floating-point or complex dtype."""
    return float(np.finfo(pixels).max)


def checked_xml(name: str, text: str) -> str:
    """The text of a metadata item, if XML can hold it.

    Raises:
        SaveError: a character stands in the way.

    """
    bad = _FORBIDDEN.search(text)
    if bad:
        raise SaveError(f"metadata item {name!r} has the character {bad[0]!r}, which GDAL_METADATA (XML) cannot hold")
    return text


def _item(name: str, text: str, attributes: str) -> str:
    checked_xml(name, name + text)
    return f"  <Item name={quoteattr(name)}{attributes}>{escape(escape(text))}</Item>"
