"""Recognise Sentinel-2, Landsat and HLS files by name, and look up their scale, offset and fill value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.products.landsat import landsat_band
from vllm_mmout.geo.raster.products.product_band import ProductBand
from vllm_mmout.geo.raster.products.sentinel2 import doubt_beside_product, sentinel2_band

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.windowed import OpenRaster

_HLS_FILL = -9999


def with_product(raster: OpenRaster, path: Path | None) -> OpenRaster:
    """Recognise a satellite product by the file name of a raster, and set its scale, offset and fill value.

    Args:
        raster: the opened raster. Its own nodata value takes precedence over the product's fill value.
        path: local path of the file, beside which the product's metadata is searched; None to use the name only.

    """
    if raster.dtype.kind not in "iu":
        return raster
    name = PurePath(raster.name).name
    band = product_band(name, path) if raster.count == 1 else None
    if band is None:
        is_picture = raster.dtype.itemsize == 1  # such as the product's own preview
        return raster if is_picture else _with_doubt(raster, doubt_beside_product(name, path, raster.count))
    nodata = band.fill if raster.nodata is None else raster.nodata
    return raster.told(nodata=nodata, packing=raster.packing if band.packing is None else (band.packing,))


def _with_doubt(raster: OpenRaster, doubt: str) -> OpenRaster:
    """Add a warning to the bands whose scale and offset are not stated. Do nothing if ``doubt`` is empty."""
    if not doubt:
        return raster
    packing = raster.packing or (Packing(),) * raster.count
    return raster.told(packing=tuple(band if band.told else replace(band, doubt=doubt) for band in packing))


def product_band(name: str, path: Path | None) -> ProductBand | None:
    """Return the fill value, scale and offset of a satellite product's file, or None if the name is not recognised."""
    if name.startswith(("HLS.L30.", "HLS.S30.")):  # its tags state the scale
        return None if "Fmask" in name else ProductBand(_HLS_FILL)
    return sentinel2_band(name, path) or landsat_band(name, path)
