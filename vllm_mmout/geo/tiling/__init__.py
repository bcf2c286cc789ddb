"""Cutting rasters into tiles and joining what a model makes of them; neither torch nor vLLM is needed."""

from vllm_mmout.geo.tiling.grid import Blend, TileGrid, axis_weights, reflected

__all__ = ["Blend", "TileGrid", "axis_weights", "reflected"]
