"""ObjectDetectionProcessor: the boxes that transformers' own ``post_process_object_detection`` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import DecodeError
from vllm_mmout.processors.base import OutputProcessor, Parts
from vllm_mmout.processors.boxes import joined_boxes
from vllm_mmout.processors.option_values import Labels, checked_count, checked_part
from vllm_mmout.wings.transformers.heads import folder_of
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import image_processor_of, output_of

if TYPE_CHECKING:
    from vllm_mmout.outputs import DetectionOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part, Raw


class ObjectDetectionProcessor(OutputProcessor):
    """Objects as boxes, with the labels, scores and order of the folder's own processor.

    Args:
        threshold: only higher scores are returned.
        max_detections: how many a scene has at most; a single picture has what the processor gives.
        iou_threshold: intersection over union above which boxes from two tiles are one object.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "object-detection"
    modality: ClassVar[str] = "structured"

    def __init__(self, *, threshold: float = 0.5, max_detections: int = 1000, iou_threshold: float = 0.5) -> None:
        self._threshold = checked_part("threshold", threshold)
        self._most = checked_count("max_detections", max_detections)
        self._iou_threshold = checked_part("iou_threshold", iou_threshold)
        self._labels = Labels()
        self._folder = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process, with the names of config.json."""
        made = cls(**options)
        made._labels = Labels().or_those_of(config)
        made._folder = folder_of(config)
        return made

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> DetectionOutput:
        """Make a `DetectionOutput` in pixels of the input; DecodeError where scores or boxes hold NaN or infinity."""
        from vllm_mmout.outputs import Detection, DetectionOutput

        if not isinstance(raw, dict) or SIZE not in raw:
            raise DecodeError(f"the model's output lacks {SIZE}; name this processor for heads of transformers only")
        tensors = {name: tensor[None].float() for name, tensor in raw.items() if name != SIZE}
        for name, tensor in tensors.items():
            if tensor.isnan().any():
                raise DecodeError(
                    f'{name} of the model hold NaN; check the input\'s values, or run the model with dtype="float32"'
                )
        height, width = raw[SIZE].tolist()
        post_process = image_processor_of(self._folder).post_process_object_detection
        (found,) = post_process(output_of(tensors), threshold=self._threshold, target_sizes=[(height, width)])
        rows = zip(found["labels"].tolist(), found["scores"].tolist(), found["boxes"].tolist(), strict=True)
        return DetectionOutput(
            detections=[
                Detection(id=number, label=self._labels.of(number), score=score, box=tuple(box))
                for number, score, box in rows
            ],
            size=(height, width),
        )

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join what was found in the tiles of a scene as if it were one input: each object once, the best of all."""
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        return joined_boxes(parts, self._iou_threshold, self._most)
