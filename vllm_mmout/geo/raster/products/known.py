"""Files of Sentinel-2, Landsat and HLS: told by their names, with what their product says of their numbers."""

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
    """Return an opened raster with what its product says of its numbers, where its name is that of a product's file.

    Args:
        raster: what was opened; what it says itself counts before the product.
        path: the file on this machine, beside which the product's metadata is looked for; None: the name alone counts.

    """
    if raster.count != 1 or raster.dtype.kind not in "iu":
        return raster
    band = product_band(PurePath(raster.name).name, path)
    if band is None:
        return raster
    nodata = band.fill if raster.nodata is None else raster.nodata
    return raster.told(nodata=nodata, packing=raster.packing if band.packing is None else (band.packing,))


def product_band(name: str, path: Path | None) -> ProductBand | None:
    """Return what is known of a file by its name and its product; None if no known product has such names."""
    if name.startswith(("HLS.L30.", "HLS.S30.")):  # its tags state the scale
        return None if "Fmask" in name else ProductBand(_HLS_FILL)
    return sentinel2_band(name, path) or landsat_band(name, path)
