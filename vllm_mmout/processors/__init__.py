"""Output processors, one a file; each is imported when first asked for, and torch not before a request needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.processors.base import OutputProcessor, Part, Window
    from vllm_mmout.processors.image import ImageProcessor
    from vllm_mmout.processors.segmentation import SegmentationProcessor
    from vllm_mmout.processors.tensor import TensorProcessor

__all__ = ["ImageProcessor", "OutputProcessor", "Part", "SegmentationProcessor", "TensorProcessor", "Window"]

_HOMES = {
    "ImageProcessor": "vllm_mmout.processors.image",
    "OutputProcessor": "vllm_mmout.processors.base",
    "Part": "vllm_mmout.processors.base",
    "SegmentationProcessor": "vllm_mmout.processors.segmentation",
    "TensorProcessor": "vllm_mmout.processors.tensor",
    "Window": "vllm_mmout.processors.base",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
