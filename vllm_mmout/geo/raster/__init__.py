"""Georeferenced rasters as arrays: reading, writing, and where on Earth they lie; knows nothing of torch or vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference
    from vllm_mmout.geo.raster.opened import open_raster, read_raster
    from vllm_mmout.geo.raster.raster import GroundControlPoint, Raster, Window
    from vllm_mmout.geo.raster.tags import GeoTag
    from vllm_mmout.geo.raster.windowed import OpenRaster
    from vllm_mmout.geo.raster.writing import write_geotiff

__all__ = [
    "GeoTag",
    "Georeference",
    "GroundControlPoint",
    "OpenRaster",
    "Raster",
    "Window",
    "open_raster",
    "read_raster",
    "write_geotiff",
]

_HOMES = {
    "GeoTag": "vllm_mmout.geo.raster.tags",
    "Georeference": "vllm_mmout.geo.raster.georeference",
    "GroundControlPoint": "vllm_mmout.geo.raster.raster",
    "OpenRaster": "vllm_mmout.geo.raster.windowed",
    "Raster": "vllm_mmout.geo.raster.raster",
    "Window": "vllm_mmout.geo.raster.raster",
    "open_raster": "vllm_mmout.geo.raster.opened",
    "read_raster": "vllm_mmout.geo.raster.opened",
    "write_geotiff": "vllm_mmout.geo.raster.writing",
}
"""Public name -> the module that defines it."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
