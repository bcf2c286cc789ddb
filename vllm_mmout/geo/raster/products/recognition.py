"""Recognise Sentinel-2, Landsat and HLS files by name, and look up their scale, offset and fill value."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from vllm_mmout.geo.raster.products.landsat import landsat_band
from vllm_mmout.geo.raster.products.product_band import ProductBand
from vllm_mmout.geo.raster.products.sentinel2 import sentinel2_band

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.windowed import OpenRaster

_HLS_FILL = -9999


def with_product(raster: OpenRaster, path: Path | None) -> OpenRaster:
    """Recognise a satellite product by the file name of a raster, and set its scale, offset and fill value.

    Args:
        raster: the opened raster. Its own nodata value takes precedence over the product's fill value.
        path: local path of the file, beside which the product's metadata is searched; None to use the name only.

    """
    if raster.count != 1 or raster.dtype.kind not in "iu":
        return raster
    band = product_band(PurePath(raster.name).name, path)
    if band is None:
        return raster
    nodata = band.fill if raster.nodata is None else raster.nodata
    return raster.told(nodata=nodata, packing=raster.packing if band.packing is None else (band.packing,))


def product_band(name: str, path: Path | None) -> ProductBand | None:
    """Return the fill value, scale and offset of a satellite product's file, or None if the name is not recognised."""
    if name.startswith(("HLS.L30.", "HLS.S30.")):  # its tags state the scale
        return None if "Fmask" in name else ProductBand(_HLS_FILL)
    return sentinel2_band(name, path) or landsat_band(name, path)
