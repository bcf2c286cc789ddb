"""Read the bands of a STAC item's assets: names, scale, offset and nodata. Supports STAC 1.0 and 1.1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Packing
from vllm_mmout.models.inputs.catalogued import StatedBand
from vllm_mmout.wings.stac.documents import Json, as_number
from vllm_mmout.wings.stac.sentinel2 import APPLIED, SENTINEL_2, ProductCounts, is_optical

_BAND_LIST_FIELDS: Final = ("bands", "eo:bands", "raster:bands")
"""Fields of a STAC asset that list its bands. STAC 1.1 uses ``bands``. Extensions of STAC 1.0 use ``eo:bands`` and
``raster:bands``."""
_MOST: Final = 10_000


def bands_of(name: str, key: str, asset: Json) -> list[dict[str, Any]]:
    """Return a description of each band of a STAC asset, merged from all fields that list bands.

    Args:
        name: name of the asset in messages.
        key: key of the asset in its item.
        asset: the asset.

    """
    lists = {field: _list(name, field, asset[field]) for field in _BAND_LIST_FIELDS if asset.get(field)}
    counts = {len(bands) for bands in lists.values()}
    if len(counts) > 1:
        stated = ", ".join(f"{len(bands)} in {field}" for field, bands in lists.items())
        raise InputError(f"{name} states different numbers of bands: {stated}; correct the item")
    merged: list[dict[str, Any]] = [{} for _ in range(max(counts, default=0))]
    for bands in lists.values():
        for band, more in zip(merged, bands, strict=True):
            band.update(more)
    if len(merged) == 1 and not names_of(merged[0]):
        merged[0]["name"] = key
    return merged


def stated_band(
    name: str, asset: Json, band: Json, properties: Json, sensor: str | None, *, counts: ProductCounts | None
) -> StatedBand:
    """Return the names, scale, offset and nodata value of a band. Values that ``band`` lacks are taken from ``asset``.

    ``counts`` are facts of an item of a Sentinel-2 product.
    """
    both = {**{field: asset[field] for field in ("nodata", "raster:scale", "raster:offset") if field in asset}, **band}
    scale, offset = (
        _number(name, field, both.get(f"raster:{field}", both.get(field))) for field in ("scale", "offset")
    )
    names = names_of(band)
    if offset is None and counts is not None and is_optical(names):
        packing: Packing | None = counts.packing(scale)
    else:
        packing = _packing(1.0 if scale is None else scale, offset or 0.0, properties, sensor)
    return StatedBand(names, packing, _nodata(name, both.get("nodata")))


def _packing(scale: float, offset: float, properties: Json, sensor: str | None) -> Packing | None:
    if (scale, offset) == (1.0, 0.0):
        return None
    if offset and properties.get(APPLIED) is True:
        return Packing(scale, 0.0, f"the STAC item, whose offset {offset:g} was added before ({APPLIED})")
    counts = offset / scale if scale and sensor == SENTINEL_2 else 0.0
    is_whole = math.isfinite(counts) and abs(counts - round(counts)) < 1e-6
    return Packing(scale, offset, "the STAC item", shift=round(counts) if is_whole else 0)  # as in the products


def names_of(band: Json) -> tuple[str, ...]:
    """Return the names and the common names that a band's description contains."""
    texts = [band.get(field) for field in ("name", "eo:common_name", "common_name")]
    return tuple(dict.fromkeys(text for text in texts if isinstance(text, str) and text))


def _list(name: str, field: str, bands: Any) -> Sequence[Json]:
    if not isinstance(bands, list) or not all(isinstance(band, Mapping) for band in bands):
        raise InputError(f"{name}: {field} must be a list of objects, got {type(bands).__name__}; correct the item")
    if len(bands) > _MOST:
        raise InputError(f"{name}: {field} lists {len(bands)} bands, and at most {_MOST} are read")
    return bands


def _number(name: str, field: str, value: Any) -> float | None:
    if value is None:
        return None
    number = as_number(value)
    if number is None:
        raise InputError(f"{name}: {field} must be a number, got {str(value)[:40]!r}; correct the item")
    if field == "scale" and number == 0:
        raise InputError(f"{name}: scale is 0, which no pixel could have; correct the item")
    return number


def _nodata(name: str, value: Any) -> float | None:
    """Parse a nodata value, which STAC writes as a number or as "nan", "inf" or "-inf"."""
    if value is None:
        return None
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name}: nodata must be a number, got {str(value)[:40]!r}; correct the item")
