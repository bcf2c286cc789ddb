"""Convert rasters to xarray ``DataArray`` objects with the conventions of rioxarray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.geo import proj_crs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from xarray import DataArray

    from vllm_mmout.geo import Affine
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
    coordinates: dict[str, Any] = {
        "band": np.arange(1, raster.count + 1),
        "spatial_ref": ((), 0, spatial_ref(raster.crs, raster.transform)),
    }
    coordinates |= pixel_centres(raster.transform, raster.height, raster.width)
    array = raster.array
    pixels = array.view(np.uint8) if array.dtype == np.bool_ else array  # GeoTIFFs store bool as uint8 too
    return DataArray(
        pixels, coordinates, ("band", "y", "x"), attrs={**raster.metadata, **attributes(raster, pixels.dtype)}
    )


def pixel_centres(transform: Affine | None, height: int, width: int) -> dict[str, NDArray[np.floating[Any]]]:
    """Return the coordinates y and x of pixel centres. Return {} without a transform, or if it is rotated."""
    if transform is None or transform[1] != 0 or transform[3] != 0:
        return {}
    a, _, c, _, e, f = transform
    return {"y": e * (np.arange(height) + 0.5) + f, "x": a * (np.arange(width) + 0.5) + c}


def spatial_ref(crs: str | None, transform: Affine | None) -> dict[str, Any]:
    """Return the attributes of rioxarray's ``spatial_ref``: CRS (CF and WKT), and transform in GDAL's order."""
    stated: dict[str, Any] = {}
    if crs is not None:
        try:
            system = proj_crs(crs)
        except ImportError as error:
            raise ModuleNotFoundError(f"a coordinate system in xarray or Zarr needs pyproj; {_EXTRA}") from error
        stated |= system.to_cf()
        stated["spatial_ref"] = stated["crs_wkt"]
    if transform is not None:
        a, b, c, d, e, f = transform
        stated["GeoTransform"] = " ".join(map(repr, map(float, (c, a, b, f, d, e))))
    return stated


def attributes(raster: RasterContent, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of the CF conventions for nodata, scales, names of bands and units."""
    stated: dict[str, Any] = {}
    if raster.nodata is not None:
        stated["_FillValue"] = dtype.type(raster.nodata)
    if raster.scales:
        stated["scale_factor"] = raster.scales[0] if len(raster.scales) == 1 else raster.scales
    for name, texts in (("long_name", raster.band_names), ("units", raster.units)):
        if any(texts):
            stated[name] = texts[0] if len(texts) == 1 else texts
    return stated
