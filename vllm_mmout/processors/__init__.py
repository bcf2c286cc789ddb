"""Output processors, one a file; each is imported when first asked for, and torch not before a request needs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_mmout.processors.base import OutputProcessor, Part, Window
    from vllm_mmout.processors.image import ImageProcessor
    from vllm_mmout.processors.segmentation import SegmentationProcessor
    from vllm_mmout.processors.tensor import TensorProcessor

__all__ = ["ImageProcessor", "OutputProcessor", "Part", "SegmentationProcessor", "TensorProcessor", "Window"]

_HOMES = {
    "ImageProcessor": "image",
    "OutputProcessor": "base",
    "Part": "base",
    "SegmentationProcessor": "segmentation",
    "TensorProcessor": "tensor",
    "Window": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
