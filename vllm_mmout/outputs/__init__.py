"""The objects that results come as; each is imported when it is first used, none needs torch or vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.outputs.areas import AreasOutput, ClassArea
    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.outputs.base import MediaOutput, Source
    from vllm_mmout.outputs.classification import ClassificationOutput, ClassScore
    from vllm_mmout.outputs.detection import Detection, DetectionOutput
    from vllm_mmout.outputs.image import ImageOutput
    from vllm_mmout.outputs.polygons import PolygonsOutput
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput

__all__ = [
    "AreasOutput",
    "AudioOutput",
    "ClassArea",
    "ClassScore",
    "ClassificationOutput",
    "Detection",
    "DetectionOutput",
    "ImageOutput",
    "MediaOutput",
    "PolygonsOutput",
    "RasterOutput",
    "Source",
    "StructuredOutput",
    "TensorOutput",
]

_HOMES = {
    "AreasOutput": "vllm_mmout.outputs.areas",
    "AudioOutput": "vllm_mmout.outputs.audio",
    "ClassArea": "vllm_mmout.outputs.areas",
    "ClassScore": "vllm_mmout.outputs.classification",
    "ClassificationOutput": "vllm_mmout.outputs.classification",
    "Detection": "vllm_mmout.outputs.detection",
    "DetectionOutput": "vllm_mmout.outputs.detection",
    "ImageOutput": "vllm_mmout.outputs.image",
    "MediaOutput": "vllm_mmout.outputs.base",
    "PolygonsOutput": "vllm_mmout.outputs.polygons",
    "RasterOutput": "vllm_mmout.outputs.raster",
    "Source": "vllm_mmout.outputs.base",
    "StructuredOutput": "vllm_mmout.outputs.structured",
    "TensorOutput": "vllm_mmout.outputs.tensor",
}
"""Public name -> the module that defines it."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
