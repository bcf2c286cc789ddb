"""Output processors, one per module. A module is imported when its processor is first used.

The modules do not import torch. The processors import torch when a request needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names

if TYPE_CHECKING:
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.processors.classification import ClassificationProcessor
    from vllm_mmout.processors.detection import DetectionProcessor
    from vllm_mmout.processors.embedding import EmbeddingProcessor
    from vllm_mmout.processors.embedding_grid import EmbeddingGridProcessor
    from vllm_mmout.processors.image import ImageProcessor
    from vllm_mmout.processors.part import Part
    from vllm_mmout.processors.parts import Parts
    from vllm_mmout.processors.regression import RegressionProcessor
    from vllm_mmout.processors.segmentation import SegmentationProcessor
    from vllm_mmout.processors.tensor import TensorProcessor
    from vllm_mmout.processors.video import VideoProcessor

__all__ = [
    "ClassificationProcessor",
    "DetectionProcessor",
    "EmbeddingGridProcessor",
    "EmbeddingProcessor",
    "ImageProcessor",
    "OutputProcessor",
    "Part",
    "Parts",
    "RegressionProcessor",
    "SegmentationProcessor",
    "TensorProcessor",
    "VideoProcessor",
    "Window",
]

_HOMES = {
    "vllm_mmout.geo": "Window",
    "vllm_mmout.processors.base": "OutputProcessor",
    "vllm_mmout.processors.parts": "Parts",
    "vllm_mmout.processors.classification": "ClassificationProcessor",
    "vllm_mmout.processors.detection": "DetectionProcessor",
    "vllm_mmout.processors.embedding": "EmbeddingProcessor",
    "vllm_mmout.processors.embedding_grid": "EmbeddingGridProcessor",
    "vllm_mmout.processors.image": "ImageProcessor",
    "vllm_mmout.processors.part": "Part",
    "vllm_mmout.processors.regression": "RegressionProcessor",
    "vllm_mmout.processors.segmentation": "SegmentationProcessor",
    "vllm_mmout.processors.tensor": "TensorProcessor",
    "vllm_mmout.processors.video": "VideoProcessor",
}
"""Maps the path of a module to the name of the class that this package imports from the module on first use."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
