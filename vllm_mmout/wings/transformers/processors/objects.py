"""Output processors for objects as boxes, computed by transformers' ``post_process_*`` methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError
from vllm_mmout.processors.option_values import checked_count, checked_part
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.scene_boxes import joined_boxes
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import HeadOutput, called
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder
from vllm_mmout.wings.transformers.prompts import TEXTS, as_texts

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from vllm_mmout.outputs import Detection, DetectionOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

    _Row: TypeAlias = tuple[int, str, torch.Tensor, torch.Tensor]

_LIMIT_ARGUMENT = "top_k"
"""Name of the ``post_process_*`` argument that limits the number of objects. Some image processors lack it."""
_NONE = Parameter(_LIMIT_ARGUMENT, Parameter.KEYWORD_ONLY)


class ObjectDetectionProcessor(OfFolder):
    """Output processor that detects objects and returns the box, label and score of each object.

    Boxes, class numbers and scores are computed by the model's image processor. Labels are the names of the classes in
    config.json.

    Args:
        threshold: only objects with a higher score are returned.
        max_detections: largest number of objects returned, the best of an input or of a whole scene; None for all.
            ``omitted`` of the result is the number of other objects above the threshold.
        iou_threshold: intersection over union above which boxes from two tiles are the same object.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "object-detection"
    modality: ClassVar[str] = "structured"
    _keeps_flat: ClassVar[bool] = False
    """Whether flat boxes, which have a width or height of 0, are kept in the result."""

    def __init__(
        self, *, threshold: float = 0.5, max_detections: int | None = None, iou_threshold: float = 0.5
    ) -> None:
        self._threshold = checked_part("threshold", threshold)
        self._most = None if max_detections is None else checked_count("max_detections", max_detections)
        self._iou_threshold = checked_part("iou_threshold", iou_threshold)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> DetectionOutput:
        """Build a `DetectionOutput` with boxes in pixels of the input. Raise DecodeError if a value is NaN."""
        from vllm_mmout.outputs import Detection, DetectionOutput
        from vllm_mmout.outputs.detection import within

        if not isinstance(raw, dict) or SIZE not in raw:
            raise DecodeError(f"the model's output lacks {SIZE}; name this processor for heads of transformers only")
        for name, tensor in raw.items():
            if tensor.isnan().any():
                raise DecodeError(
                    f'{name} of the model hold NaN; check the input\'s values, or run the model with dtype="float32"'
                )
        tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in raw.items()}
        height, width = tensors.pop(SIZE).tolist()
        rows, omitted = self._detected(tensors, (height, width), part=params.part)
        every = (
            Detection(id=number, label=label, score=float(score), box=tuple(box.tolist()))
            for number, label, score, box in rows
        )
        detections = within(every, width, height, keep_flat=self._keeps_flat)
        best = detections if params.part or self._most is None else _best(detections, self._most)
        return DetectionOutput(
            detections=best,
            size=(height, width),
            omitted=omitted + len(detections) - len(best),
            keeps_flat=self._keeps_flat,
        )

    def _detected(
        self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int], *, part: bool
    ) -> tuple[Iterable[_Row], int]:
        """Return the objects in a picture, and the number of objects dropped by the image processor's own limit.

        A row is the number and name of a class, a score and a box. Some processors return only the best 100 objects of
        a picture; for a tile of a scene, all objects are requested.
        """
        import torch

        output = HeadOutput({name: tensor[None] for name, tensor in tensors.items()})
        find = partial(
            self.image_processor.post_process_object_detection,
            output,
            threshold=self._threshold,
            target_sizes=torch.tensor([size]),
        )
        (result,) = find()
        omitted = 0
        if signature(find).parameters.get(_LIMIT_ARGUMENT, _NONE).default == len(result["labels"]):
            (every,) = find(**{_LIMIT_ARGUMENT: tensors["logits"].numel()})
            result, omitted = (every, 0) if part else (result, len(every["labels"]) - len(result["labels"]))
        numbers = result["labels"].tolist()
        names = map(self._labels.of, numbers)
        return zip(numbers, names, result["scores"], result["boxes"], strict=True), omitted

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the objects of a scene's tiles. Remove duplicates, and keep the scene's best ``max_detections``."""
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        return joined_boxes(parts, self._iou_threshold, self._most)


class ZeroShotObjectDetectionProcessor(ObjectDetectionProcessor):
    """Output processor that finds objects by the texts in a request, and returns their boxes.

    Args:
        threshold: only objects with a higher score are returned; None for the processor's default, 0.1 to 0.3.
        text_threshold: least score of the words in a label, for models that take all texts as one (Grounding DINO);
            None for the processor's default.
        max_detections: largest number of objects returned, the best of an input or of a whole scene; None for all.
            ``omitted`` of the result is the number of other objects above the threshold.
        iou_threshold: intersection over union above which boxes from two tiles are the same object.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "zero-shot-object-detection"
    _keeps_flat: ClassVar[bool] = True

    def __init__(
        self,
        *,
        threshold: float | None = None,
        text_threshold: float | None = None,
        max_detections: int | None = None,
        iou_threshold: float = 0.5,
    ) -> None:
        super().__init__(max_detections=max_detections, iou_threshold=iou_threshold)
        options = {"threshold": threshold, "text_threshold": text_threshold}
        self._options = {name: checked_part(name, value) for name, value in options.items() if value is not None}

    def _detected(
        self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int], *, part: bool
    ) -> tuple[Iterable[_Row], int]:
        """Return (objects, 0): the objects that match the request's texts, and the number of omitted objects.

        The number is always 0, because processors that take texts do not limit the number of objects.
        """
        import torch

        texts = as_texts(tensors[TEXTS])
        (result,) = called(
            self.processor.post_process_grounded_object_detection,
            HeadOutput({name: tensor for name, tensor in tensors.items() if name != TEXTS}),
            target_sizes=[size],
            text_labels=[texts],
            **self._options,
        )
        labels = result["text_labels"]
        numbers = dict.__getitem__(result, "labels")  # the class's own method warns that labels may be texts
        if not isinstance(numbers, torch.Tensor):
            lower_texts = [text.lower() for text in texts]
            numbers = [
                lower_texts.index(label.lower()) if label.lower() in lower_texts else len(lower_texts)
                for label in labels
            ]
        numbers = map(int, numbers)
        return zip(numbers, labels, result["scores"], result["boxes"], strict=True), 0


def _best(detections: list[Detection], most: int) -> list[Detection]:
    """Return the detections with the highest scores, at most ``most``, in their original order."""
    places = sorted(range(len(detections)), key=lambda place: -detections[place].score)[:most]
    return [detections[place] for place in sorted(places)]
