"""The objects that results come as; each is imported when it is first used, none needs torch or vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.outputs.base import MediaOutput
    from vllm_mmout.outputs.image import ImageOutput
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput

__all__ = ["ImageOutput", "MediaOutput", "RasterOutput", "StructuredOutput", "TensorOutput"]

_HOMES = {
    "ImageOutput": "vllm_mmout.outputs.image",
    "MediaOutput": "vllm_mmout.outputs.base",
    "RasterOutput": "vllm_mmout.outputs.raster",
    "StructuredOutput": "vllm_mmout.outputs.structured",
    "TensorOutput": "vllm_mmout.outputs.tensor",
}
"""Public name -> the module that defines it."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
