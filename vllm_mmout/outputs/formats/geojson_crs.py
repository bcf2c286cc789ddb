"""Find the name of a result's coordinate system, to write it in the member ``crs`` of GeoJSON 2008."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import epsg_code

if TYPE_CHECKING:
    from vllm_mmout.geo import Affine, Georeference

_LON_LAT = "urn:ogc:def:crs:OGC:1.3:CRS84"
"""URN of WGS 84 with longitude before latitude. EPSG:4326 has latitude first, but the coordinates of a raster have
longitude first."""


def placement(georeference: Georeference | None, *, instead: str) -> tuple[str, Affine]:
    """Return the URN of a raster's coordinate system, and the transform from pixels to its coordinates.

    Raise SaveError, which suggests the suffix ``instead``, if GeoJSON cannot express the georeference.
    """
    if georeference is None:
        raise SaveError(f"GeoJSON needs a georeferenced input, this result's has no georeference; save it as {instead}")
    if georeference.transform is None:
        raise SaveError(
            "GeoJSON needs an input with an affine transform, this result's has ground control points or RPCs;"
            f" warp it first (gdalwarp), or save the result as {instead}"
        )
    code = None if georeference.crs is None else epsg_code(georeference.crs)
    if code is None:
        fault = georeference.why_no_crs if georeference.crs is None else "a coordinate system without an EPSG code"
        raise SaveError(
            f"GeoJSON names a coordinate system by its EPSG code, this result's input has {fault}; reproject it first"
            f" (gdalwarp -t_srs EPSG:n), or save the result as {instead}"
        )
    return crs_name(code), georeference.transform


def crs_name(code: int) -> str:
    """Return the URN of the coordinate system with an EPSG code, for the member ``crs`` of a GeoJSON document."""
    return _LON_LAT if code == 4326 else f"urn:ogc:def:crs:EPSG::{code}"
