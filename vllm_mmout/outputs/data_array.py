"""Convert rasters to xarray ``DataArray`` objects with the conventions of rioxarray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.geo import proj_crs

if TYPE_CHECKING:
    from xarray import DataArray

    from vllm_mmout.outputs.formats.contents import RasterContent

_EXTRA = 'pip install "vllm-mmout[xarray]"'


def data_array(raster: RasterContent) -> DataArray:
    """Convert a raster to an xarray ``DataArray``, for `RasterOutput.to_xarray`.

    Coordinates x and y are pixel centres. They are left out for a rotated transform, for which x and y both depend on
    row and column.
    """
    try:
        from xarray import DataArray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"to_xarray needs xarray; {_EXTRA}", name="xarray") from error
    coordinates: dict[str, Any] = {"band": np.arange(1, raster.count + 1), "spatial_ref": ((), 0, _spatial_ref(raster))}
    if raster.transform is not None and raster.transform[1] == raster.transform[3] == 0:
        a, _, c, _, e, f = raster.transform
        coordinates["y"] = e * (np.arange(raster.height) + 0.5) + f
        coordinates["x"] = a * (np.arange(raster.width) + 0.5) + c
    array = raster.array
    pixels = array.view(np.uint8) if array.dtype == np.bool_ else array  # GeoTIFFs store bool as uint8 too
    return DataArray(pixels, coordinates, ("band", "y", "x"), attrs=_attributes(raster, pixels.dtype))


def _spatial_ref(raster: RasterContent) -> dict[str, Any]:
    """Return the attributes of rioxarray's ``spatial_ref``: CRS (CF and WKT), and transform in GDAL's order."""
    attributes: dict[str, Any] = {}
    if raster.crs is not None:
        try:
            system = proj_crs(raster.crs)
        except ImportError as error:
            raise ModuleNotFoundError(f"to_xarray of a coordinate system needs pyproj; {_EXTRA}") from error
        attributes |= system.to_cf()
        attributes["spatial_ref"] = attributes["crs_wkt"]
    if raster.transform is not None:
        a, b, c, d, e, f = raster.transform
        attributes["GeoTransform"] = " ".join(map(repr, map(float, (c, a, b, f, d, e))))
    return attributes


def _attributes(raster: RasterContent, dtype: np.dtype[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = dict(raster.metadata)
    if raster.nodata is not None:
        attributes["_FillValue"] = dtype.type(raster.nodata)
    if raster.scales:
        attributes["scale_factor"] = raster.scales[0] if len(raster.scales) == 1 else raster.scales
    for name, texts in (("long_name", raster.band_names), ("units", raster.units)):
        if any(texts):
            attributes[name] = texts[0] if len(texts) == 1 else texts
    return attributes
