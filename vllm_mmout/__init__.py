"""Output processors that let vLLM serve models whose answers are images, georeferenced rasters or structured data.

The names below are imported when they are first used, so that ``import vllm_mmout`` loads neither torch nor vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.engine.mosaic.mosaic import Mosaic
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.errors import MMOutError
    from vllm_mmout.models.embedded.folders import embedded_model
    from vllm_mmout.models.embedded.scene import embedded_scene
    from vllm_mmout.models.inputs.mapped_input import MappedInput
    from vllm_mmout.models.inputs.mapper import RasterMapper
    from vllm_mmout.outputs import (
        AudioOutput,
        ImageOutput,
        RasterOutput,
        StructuredOutput,
        TensorOutput,
        VideoOutput,
    )
    from vllm_mmout.outputs.saved import open_result
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry import (
        MULTIMODAL_INPUT_REGISTRY,
        MULTIMODAL_OUTPUT_REGISTRY,
        register_output_processor,
    )
    from vllm_mmout.version import __version__

__all__ = [
    "MULTIMODAL_INPUT_REGISTRY",
    "MULTIMODAL_OUTPUT_REGISTRY",
    "AudioOutput",
    "ImageOutput",
    "MMOutError",
    "MappedInput",
    "Mosaic",
    "MultimodalRequestOutput",
    "OutputParams",
    "OutputProcessor",
    "RasterMapper",
    "RasterOutput",
    "StructuredOutput",
    "TensorOutput",
    "VideoOutput",
    "__version__",
    "embedded_model",
    "embedded_scene",
    "open_result",
    "register_output_processor",
]

_HOMES = {
    "vllm_mmout.engine.mosaic.mosaic": "Mosaic",
    "vllm_mmout.engine.request_output": "MultimodalRequestOutput",
    "vllm_mmout.errors": "MMOutError",
    "vllm_mmout.models.embedded.folders": "embedded_model",
    "vllm_mmout.models.embedded.scene": "embedded_scene",
    "vllm_mmout.models.inputs.mapped_input": "MappedInput",
    "vllm_mmout.models.inputs.mapper": "RasterMapper",
    "vllm_mmout.outputs": "AudioOutput ImageOutput RasterOutput StructuredOutput TensorOutput VideoOutput",
    "vllm_mmout.outputs.saved": "open_result",
    "vllm_mmout.params": "OutputParams",
    "vllm_mmout.processors.base": "OutputProcessor",
    "vllm_mmout.registry": "MULTIMODAL_INPUT_REGISTRY MULTIMODAL_OUTPUT_REGISTRY register_output_processor",
    "vllm_mmout.version": "__version__",
}
"""Public names of this package, by the module that defines them. Spaces separate the names of a module."""

_of_ours, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    """Import the public object or the extension package called ``name`` when it is first used, and return it."""
    try:
        return _of_ours(name)
    except AttributeError:
        from vllm_mmout.wing import public_module

        module = None if name.startswith("_") else public_module(name)
        if module is None:
            raise
        return module
