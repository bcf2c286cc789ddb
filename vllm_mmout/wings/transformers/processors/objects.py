"""Objects as boxes, as transformers' own ``post_process_object_detection`` and ``..._grounded_...`` make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError
from vllm_mmout.processors.base import Parts
from vllm_mmout.processors.boxes import joined_boxes
from vllm_mmout.processors.option_values import checked_count, checked_part
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import Output, called
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder
from vllm_mmout.wings.transformers.prompts import TEXTS, as_texts

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from vllm_mmout.outputs import DetectionOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part, Raw

    _Row: TypeAlias = tuple[int, str, torch.Tensor, torch.Tensor]


class ObjectDetectionProcessor(OfFolder):
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

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> DetectionOutput:
        """Make a `DetectionOutput` in pixels of the input; DecodeError where scores or boxes hold NaN or infinity."""
        from vllm_mmout.outputs import Detection, DetectionOutput

        if not isinstance(raw, dict) or SIZE not in raw:
            raise DecodeError(f"the model's output lacks {SIZE}; name this processor for heads of transformers only")
        for name, tensor in raw.items():
            if tensor.isnan().any():
                raise DecodeError(
                    f'{name} of the model hold NaN; check the input\'s values, or run the model with dtype="float32"'
                )
        tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in raw.items()}
        height, width = tensors.pop(SIZE).tolist()
        found = [
            Detection(id=number, label=label, score=float(score), box=tuple(box.tolist()))
            for number, label, score, box in self._found(tensors, (height, width))
        ]
        return DetectionOutput(detections=found, size=(height, width))

    def _found(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> Iterator[_Row]:
        """What the processor of the folder finds: number and name of the class, score, box."""
        import torch

        post_process = self.image_processor.post_process_object_detection
        output = Output({name: tensor[None] for name, tensor in tensors.items()})
        (found,) = post_process(output, threshold=self._threshold, target_sizes=torch.tensor([size]))
        numbers = found["labels"].tolist()
        yield from zip(numbers, map(self._labels.of, numbers), found["scores"], found["boxes"], strict=True)

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join what was found in the tiles of a scene as if it were one input: each object once, the best of all."""
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        return joined_boxes(parts, self._iou_threshold, self._most)


class ZeroShotObjectDetectionProcessor(ObjectDetectionProcessor):
    """The objects that a request's texts name, with the labels, scores and order of the folder's own processor.

    Args:
        threshold: only higher scores are returned; None: the processor's own, 0.1 to 0.3.
        text_threshold: which words of the text a label is made of, for models that take all texts as one (Grounding
            DINO); None: the processor's own.
        max_detections: how many a scene has at most; a single picture has what the processor gives.
        iou_threshold: intersection over union above which boxes from two tiles are one object.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "zero-shot-object-detection"

    def __init__(
        self,
        *,
        threshold: float | None = None,
        text_threshold: float | None = None,
        max_detections: int = 1000,
        iou_threshold: float = 0.5,
    ) -> None:
        super().__init__(max_detections=max_detections, iou_threshold=iou_threshold)
        given = {"threshold": threshold, "text_threshold": text_threshold}
        self._options = {name: checked_part(name, value) for name, value in given.items() if value is not None}

    def _found(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> Iterator[_Row]:
        texts = as_texts(tensors[TEXTS])
        (found,) = called(
            self.processor.post_process_grounded_object_detection,
            Output({name: tensor for name, tensor in tensors.items() if name != TEXTS}),
            target_sizes=[size],
            text_labels=[texts],
            **self._options,
        )
        labels = found["text_labels"]
        said = [text.lower() for text in texts]
        numbers = [said.index(label.lower()) if label.lower() in said else len(said) for label in labels]
        yield from zip(numbers, labels, found["scores"], found["boxes"], strict=True)
