"""Read scale and offset of bands from GDAL's tags in TIFF and PAM, and from NetCDF and HDF5 attributes."""

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
"""Names of the attributes for scale and offset in the CF conventions."""
_UNPACKED: Final = frozenset({"netCDF", "HDF5", "HDF5Image"})
"""GDAL drivers of formats that are usually read with scale and offset applied, for example by xarray."""


def packing_of_tags(gdal: GdalMetadata, count: int) -> tuple[Packing, ...]:
    """Return the scale and offset of each band, read from the GDAL metadata in a TIFF's tags.

    If GDAL's own scale and offset are missing, CF attributes are read instead, as HLS products have them. The result is
    empty if neither scale nor offset changes the numbers.
    """
    if gdal.scales or gdal.offsets:
        packings = [
            Packing(_number(gdal.scales.get(band), 1.0), _number(gdal.offsets.get(band), 0.0), "its tags")
            for band in range(count)
        ]
    else:
        scale, offset = _number(gdal.items.get(_SCALE), 1.0), _number(gdal.items.get(_OFFSET), 0.0)
        packings = [Packing(scale, offset, f"its items {_SCALE} and {_OFFSET}")] * count
    return _if_any_changes(packings)


def packing_of_pam(pam: Pam, file_packing: tuple[Packing, ...], count: int) -> tuple[Packing, ...]:
    """Return the scale and offset of each band from the PAM file, else from the raster file (``file_packing``)."""
    packings = list(file_packing or (Packing(),) * count)
    for band in ({*pam.scales, *pam.offsets}) & set(range(1, count + 1)):
        previous = packings[band - 1]
        scale, offset = _number(pam.scales.get(band), previous.scale), _number(pam.offsets.get(band), previous.offset)
        packings[band - 1] = Packing(scale, offset, "its .aux.xml")
    return _if_any_changes(packings)


def packing_of_gdal(dataset: Any) -> tuple[Packing, ...]:
    """Return the scale and offset of each band of a rasterio dataset; empty if no band has any."""
    applied, packings = dataset.driver in _UNPACKED, []
    for band, scale, offset in zip(dataset.indexes, dataset.scales, dataset.offsets, strict=True):
        said_by = f"{_SCALE} and {_OFFSET}" if applied else "its tags"
        packing = Packing(_number(scale, 1.0), _number(offset, 0.0), said_by, applied)
        if dataset.driver.startswith("HDF5"):  # GDAL ignores its attributes
            packing = _of_attributes({**dataset.tags(), **dataset.tags(band)}, packing)
        packings.append(packing)
    return _if_any_changes(packings)


def fill_of_attributes(tags: Mapping[str, str]) -> str | None:
    """Return the text of an HDF5 dataset's ``_FillValue``. Return None if it is missing or has several values."""
    text = _attribute(tags, "_FillValue")
    return None if text is None else text.split()[0].strip("{}")


def _of_attributes(tags: Mapping[str, str], packing: Packing) -> Packing:
    return replace(
        packing,
        scale=_number(_attribute(tags, _SCALE), packing.scale),
        offset=_number(_attribute(tags, _OFFSET), packing.offset),
    )


def _attribute(tags: Mapping[str, str], name: str) -> str | None:
    """Return the value of the HDF5 attribute ``name`` in GDAL's ``tags``.

    Return None if the attribute is missing or has several values. GDAL prefixes the names of attributes with the names
    of their group and dataset, so several tags can match ``name``.
    """
    pattern = re.compile(rf"(?:.*_)?{re.escape(name)}")
    values = {text.strip() for key, text in tags.items() if pattern.fullmatch(key) and text.strip()}
    return values.pop() if len(values) == 1 else None


def _number(text: Any, default: float) -> float:
    try:
        number = float(default if text is None else text)
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def _if_any_changes(packings: list[Packing]) -> tuple[Packing, ...]:
    return tuple(packings) if any(packing.told for packing in packings) else ()
