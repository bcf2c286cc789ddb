"""Export the classes of results, such as rasters, images and sound. Importing them needs neither torch nor vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.outputs.areas import AreasOutput, FeatureAreas
    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.outputs.base import MediaOutput, Source
    from vllm_mmout.outputs.class_areas import ClassArea, NodataArea
    from vllm_mmout.outputs.classification import ClassificationOutput, ClassScore
    from vllm_mmout.outputs.detection import Detection, DetectionOutput
    from vllm_mmout.outputs.image import ImageOutput
    from vllm_mmout.outputs.keypoints import Keypoint, KeypointsOutput
    from vllm_mmout.outputs.polygons import PolygonsOutput
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.series import RasterSeries
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput
    from vllm_mmout.outputs.video import VideoOutput

__all__ = [
    "AreasOutput",
    "AudioOutput",
    "ClassArea",
    "ClassScore",
    "ClassificationOutput",
    "Detection",
    "DetectionOutput",
    "FeatureAreas",
    "ImageOutput",
    "Keypoint",
    "KeypointsOutput",
    "MediaOutput",
    "NodataArea",
    "PolygonsOutput",
    "RasterOutput",
    "RasterSeries",
    "Source",
    "StructuredOutput",
    "TensorOutput",
    "VideoOutput",
]

_HOMES = {
    "vllm_mmout.outputs.areas": "AreasOutput FeatureAreas",
    "vllm_mmout.outputs.class_areas": "ClassArea NodataArea",
    "vllm_mmout.outputs.audio": "AudioOutput",
    "vllm_mmout.outputs.base": "MediaOutput Source",
    "vllm_mmout.outputs.classification": "ClassScore ClassificationOutput",
    "vllm_mmout.outputs.detection": "Detection DetectionOutput",
    "vllm_mmout.outputs.image": "ImageOutput",
    "vllm_mmout.outputs.keypoints": "Keypoint KeypointsOutput",
    "vllm_mmout.outputs.polygons": "PolygonsOutput",
    "vllm_mmout.outputs.raster": "RasterOutput",
    "vllm_mmout.outputs.series": "RasterSeries",
    "vllm_mmout.outputs.structured": "StructuredOutput",
    "vllm_mmout.outputs.tensor": "TensorOutput",
    "vllm_mmout.outputs.video": "VideoOutput",
}
"""Maps each module to the public names that it defines, separated by spaces."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
