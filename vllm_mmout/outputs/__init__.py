"""The objects that results come as; each is imported when it is first used, none needs torch or vLLM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.outputs.base import MediaOutput
    from vllm_mmout.outputs.image import ImageOutput
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput

__all__ = ["ImageOutput", "MediaOutput", "RasterOutput", "StructuredOutput", "TensorOutput"]

_HOMES = {
    "ImageOutput": "image",
    "MediaOutput": "base",
    "RasterOutput": "raster",
    "StructuredOutput": "structured",
    "TensorOutput": "tensor",
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
