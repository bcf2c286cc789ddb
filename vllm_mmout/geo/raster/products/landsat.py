"""Read the scale, offset and fill value of Landsat Collection 2 bands from the product's MTL file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from vllm_mmout.geo.raster.files import SharedFile
from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.products.product_band import ProductBand, opened_metadata, wrong_metadata
from vllm_mmout.geo.raster.xml import parse_xml

_Entries: TypeAlias = "Iterator[tuple[str, str, str]]"
"""Iterator over Landsat's metadata file (MTL). An item is (group name, entry name, value as text)."""
_FILE: Final = re.compile(
    r"(?P<product>L[COTEM]\d\d_L\d[A-Z]{2}_\d{6}_\d{8}_\d{8}_\d\d_[A-Z0-9]{2})_(?:(?P<kind>SR|ST)_)?B(?P<band>\d{1,2})\.tiff?",
    re.IGNORECASE,
)
_LARGEST: Final = 2**22
_FILL: Final = 0
_RULES: Final = {
    "SR": ("LEVEL2_SURFACE_REFLECTANCE_PARAMETERS", "REFLECTANCE_{}_BAND_{}"),
    "ST": ("LEVEL2_SURFACE_TEMPERATURE_PARAMETERS", "TEMPERATURE_{}_BAND_ST_B{}"),
    "": ("LEVEL1_RADIOMETRIC_RESCALING", "REFLECTANCE_{}_BAND_{}"),
}
"""Maps the type of a Landsat band file ("SR", "ST", or "" for level 1) to the names of its scale and offset entries.

A value is (name of the group in the MTL metadata file, pattern of the entry names). At level 1, scale and offset give
reflectance without a correction for the sun's angle.
"""


def landsat_band(name: str, path: Path | None) -> ProductBand | None:
    """Return the fill value, scale and offset of a Landsat file, or None if ``name`` is not a Landsat name.

    Scale and offset are known only if ``path`` is given and the product's MTL file is beside the file.
    """
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    if path is None:
        return ProductBand(_FILL)
    group, names = _RULES[(match["kind"] or "").upper()]
    scale_name, offset_name = (names.format(part, int(match["band"])) for part in ("MULT", "ADD"))
    for suffix, entries in (("txt", _of_text), ("json", _of_json), ("xml", _of_xml)):
        file = opened_metadata(path.with_name(f"{match['product']}_MTL.{suffix}"))
        if file is None:
            continue
        try:
            if file.size > _LARGEST:
                raise wrong_metadata(file.name, f"has {file.size} bytes, at most {_LARGEST} are read")
            stated = {entry: text for where, entry, text in entries(file) if where == group}
        finally:
            file.close()
        if scale_name in stated and offset_name in stated:
            scale, offset = (_number(file.name, entry, stated[entry]) for entry in (scale_name, offset_name))
            return ProductBand(_FILL, Packing(scale, offset, Path(file.name).name))
    return ProductBand(_FILL)


def _of_text(file: SharedFile) -> _Entries:
    """Read a Landsat metadata file in text format (MTL.txt). Yield the group, name and value of each entry."""
    group = ""
    for line in file.read_at(0, file.size).decode("utf-8", "replace").splitlines():
        name, equals, text = (part.strip() for part in line.partition("="))
        if name == "GROUP":
            group = text
        elif equals and name != "END_GROUP":
            yield group, name, text.strip('"')


def _of_json(file: SharedFile) -> _Entries:
    try:
        whole: Any = json.loads(file.read_at(0, file.size))
    except (ValueError, RecursionError) as error:
        raise wrong_metadata(file.name, f"is damaged JSON ({error})") from error
    (groups,) = whole.values() if isinstance(whole, dict) and len(whole) == 1 else ({},)
    for group, entries in groups.items() if isinstance(groups, dict) else ():
        for name, text in entries.items() if isinstance(entries, dict) else ():
            yield group, name, str(text)


def _of_xml(file: SharedFile) -> _Entries:
    path: list[str] = []
    text: list[str] = []
    entries: list[tuple[str, str, str]] = []

    def begin(name: str, _: dict[str, str]) -> None:
        path.append(name)
        text.clear()

    def end(name: str) -> None:
        path.pop()
        if path:
            entries.append((path[-1], name, "".join(text).strip()))
        text.clear()

    parse_xml(file, begin, end, text.append, lambda fact: wrong_metadata(file.name, fact))
    return iter(entries)


def _number(path: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise wrong_metadata(path, f"has {text[:40]!r} as {name}, which must be a number")
    return number
