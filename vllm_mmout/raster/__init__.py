"""Georeferenced rasters as arrays: reading, writing, and where on Earth they lie; knows nothing of torch or vLLM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.raster.geotag import GeoTag
    from vllm_mmout.raster.placement import GroundControlPoint
    from vllm_mmout.raster.raster import Raster
    from vllm_mmout.raster.read import read_raster
    from vllm_mmout.raster.write import write_geotiff

__all__ = ["GeoTag", "Georeference", "GroundControlPoint", "Raster", "read_raster", "write_geotiff"]

_HOMES = {
    "GeoTag": "geotag",
    "Georeference": "georeference",
    "GroundControlPoint": "placement",
    "Raster": "raster",
    "read_raster": "read",
    "write_geotiff": "write",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} (public: {', '.join(sorted(_HOMES))})")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
