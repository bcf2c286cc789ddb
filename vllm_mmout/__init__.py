"""Output processors for vLLM: models that answer with images, georeferenced rasters or structured data.

The names below are imported when they are first used, so that ``import vllm_mmout`` loads neither torch nor vLLM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.errors import MMOutError
    from vllm_mmout.models.embedded import embedded_model
    from vllm_mmout.outputs import ImageOutput, RasterOutput, StructuredOutput, TensorOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry import (
        MULTIMODAL_INPUT_REGISTRY,
        MULTIMODAL_OUTPUT_REGISTRY,
        register_output_processor,
    )

__version__ = "0.1.0"

__all__ = [
    "MULTIMODAL_INPUT_REGISTRY",
    "MULTIMODAL_OUTPUT_REGISTRY",
    "ImageOutput",
    "MMOutError",
    "MultimodalRequestOutput",
    "OutputParams",
    "OutputProcessor",
    "RasterOutput",
    "StructuredOutput",
    "TensorOutput",
    "__version__",
    "embedded_model",
    "register_output_processor",
]

_HOMES = {
    "MULTIMODAL_INPUT_REGISTRY": "vllm_mmout.registry",
    "MULTIMODAL_OUTPUT_REGISTRY": "vllm_mmout.registry",
    "ImageOutput": "vllm_mmout.outputs",
    "MMOutError": "vllm_mmout.errors",
    "MultimodalRequestOutput": "vllm_mmout.engine.request_output",
    "OutputParams": "vllm_mmout.params",
    "OutputProcessor": "vllm_mmout.processors.base",
    "RasterOutput": "vllm_mmout.outputs",
    "StructuredOutput": "vllm_mmout.outputs",
    "TensorOutput": "vllm_mmout.outputs",
    "embedded_model": "vllm_mmout.models.embedded",
    "register_output_processor": "vllm_mmout.registry",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} (public: {', '.join(sorted(_HOMES))})")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
