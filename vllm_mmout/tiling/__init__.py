"""Cutting rasters into tiles and joining what a model makes of them; neither torch nor vLLM is needed."""

from vllm_mmout.tiling.grid import TileGrid, reflected
from vllm_mmout.tiling.weights import Blend, axis_weights

__all__ = ["Blend", "TileGrid", "axis_weights", "reflected"]
