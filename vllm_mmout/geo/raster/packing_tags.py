"""Packing of bands as tags of files state it: those of GDAL in TIFF and PAM, and the attributes of NetCDF and HDF5."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.sidecars import Pam
from vllm_mmout.geo.raster.tags import GdalMetadata

_SCALE, _OFFSET = "scale_factor", "add_offset"
"""What the conventions CF call the two."""
_UNPACKED: Final = frozenset({"netCDF", "HDF5", "HDF5Image"})
"""Drivers of GDAL for formats whose numbers are unpacked by whoever reads them, as xarray does."""


def packing_of_tags(gdal: GdalMetadata, count: int) -> tuple[Packing, ...]:
    """Return the packing of a TIFF: the scale and offset of each band, else the file's CF attributes, as HLS has them.

    It is empty if the file says nothing, or that the numbers are the values.
    """
    if gdal.scales or gdal.offsets:
        found = [
            Packing(_number(gdal.scales.get(band), 1.0), _number(gdal.offsets.get(band), 0.0), "its tags")
            for band in range(count)
        ]
    else:
        scale, offset = _number(gdal.items.get(_SCALE), 1.0), _number(gdal.items.get(_OFFSET), 0.0)
        found = [Packing(scale, offset, f"its items {_SCALE} and {_OFFSET}")] * count
    return _if_told(found)


def packing_of_pam(pam: Pam, own: tuple[Packing, ...], count: int) -> tuple[Packing, ...]:
    """Return the packing of a raster with what PAM says of some bands, which counts before its own."""
    found = list(own or (Packing(),) * count)
    for band in ({*pam.scales, *pam.offsets}) & set(range(1, count + 1)):
        before = found[band - 1]
        scale, offset = _number(pam.scales.get(band), before.scale), _number(pam.offsets.get(band), before.offset)
        found[band - 1] = Packing(scale, offset, "its .aux.xml")
    return _if_told(found)


def packing_of_gdal(dataset: Any) -> tuple[Packing, ...]:
    """Return the packing of a dataset of rasterio's."""
    applied, found = dataset.driver in _UNPACKED, []
    for band, scale, offset in zip(dataset.indexes, dataset.scales, dataset.offsets, strict=True):
        said_by = f"{_SCALE} and {_OFFSET}" if applied else "its tags"
        packing = Packing(_number(scale, 1.0), _number(offset, 0.0), said_by, applied)
        if dataset.driver.startswith("HDF5"):  # whose attributes GDAL does not apply
            packing = _of_attributes({**dataset.tags(), **dataset.tags(band)}, packing)
        found.append(packing)
    return _if_told(found)


def fill_of_attributes(tags: Mapping[str, str]) -> str | None:
    """Return the fill value that the attributes of a dataset of HDF5 state, as text; None if they state no number."""
    text = _ending(tags, "_FillValue")
    return None if text is None else text.split()[0].strip("{}")


def _of_attributes(tags: Mapping[str, str], known: Packing) -> Packing:
    return replace(
        known,
        scale=_number(_ending(tags, _SCALE), known.scale),
        offset=_number(_ending(tags, _OFFSET), known.offset),
    )


def _ending(tags: Mapping[str, str], name: str) -> str | None:
    """Return the item of a name, which GDAL writes behind those of the groups and data that it belongs to."""
    pattern = re.compile(rf"(?:.*_)?{re.escape(name)}")
    found = {text.strip() for key, text in tags.items() if pattern.fullmatch(key) and text.strip()}
    return found.pop() if len(found) == 1 else None


def _number(said: Any, usual: float) -> float:
    try:
        number = float(usual if said is None else said)
    except ValueError:
        return usual
    return number if math.isfinite(number) else usual


def _if_told(found: list[Packing]) -> tuple[Packing, ...]:
    return tuple(found) if any(one.told for one in found) else ()
