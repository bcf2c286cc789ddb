"""Cutting rasters into tiles and joining what a model makes of them; neither torch nor vLLM is needed."""

from vllm_mmout.geo.tiling.blending import Blend, axis_weights
from vllm_mmout.geo.tiling.grid import TileGrid, reflected

__all__ = ["Blend", "TileGrid", "axis_weights", "reflected"]
