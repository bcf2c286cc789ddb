"""Georeferenced rasters as arrays: reading, writing, and where on Earth they lie; knows nothing of torch or vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.raster.geotag import GeoTag
    from vllm_mmout.raster.opened import open_raster
    from vllm_mmout.raster.placement import GroundControlPoint
    from vllm_mmout.raster.raster import Raster
    from vllm_mmout.raster.read import read_raster
    from vllm_mmout.raster.window import Window
    from vllm_mmout.raster.windowed import OpenRaster
    from vllm_mmout.raster.writing.write import write_geotiff

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
    "GeoTag": "vllm_mmout.raster.geotag",
    "Georeference": "vllm_mmout.raster.georeference",
    "GroundControlPoint": "vllm_mmout.raster.placement",
    "OpenRaster": "vllm_mmout.raster.windowed",
    "Raster": "vllm_mmout.raster.raster",
    "Window": "vllm_mmout.raster.window",
    "open_raster": "vllm_mmout.raster.opened",
    "read_raster": "vllm_mmout.raster.read",
    "write_geotiff": "vllm_mmout.raster.writing.write",
}
"""Public name -> the module that defines it."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
