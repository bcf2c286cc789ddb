"""`DetectionProcessor`, which turns the output of an object detector into boxes with class names and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.boxes import FORMATS, as_corners, suppressed
from vllm_mmout.processors.option_values import (
    Labels,
    ModelClass,
    checked_count,
    checked_names,
    checked_part,
    checked_switch,
)
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import describe, not_of_reduce
from vllm_mmout.processors.scene_boxes import joined_boxes

if TYPE_CHECKING:
    import torch

    from vllm_mmout.outputs import DetectionOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

_TAKES = (
    'detection output must be a dict of floating-point "logits" [n, queries, classes] and "pred_boxes" [n, queries, 4],'
    ' or of "scores" [n, boxes], integer "labels" [n, boxes] and "boxes" [n, boxes, 4]'
)
_BEFORE_SUPPRESSION = 10
"""Number of boxes that the worker sends for each of ``max_detections`` boxes, if non-maximum suppression removes some
boxes afterwards."""
_MAX_SENT = 1000
"""Maximum number of boxes that the worker sends for an input if ``max_detections`` is not set."""

_SAME_OBJECT_IOU = 0.5
"""Default intersection over union above which boxes from two tiles count as the same object."""

_REMEDY = 'check the input\'s values, or run the model with dtype="float32"'


class DetectionProcessor(OutputProcessor):
    """Processor for models that detect objects. It returns their boxes, with class names and scores.

    The model must return one of these two dicts.

    - {"logits": [n, queries, classes], "pred_boxes": [n, queries, 4]}, as in DETR and its relatives. With
      ``no_object`` each query gives at most one object: its best class by softmax, where the last class means "no
      object" (DETR, YOLOS). Without it each class of each query is a candidate, scored by its sigmoid (Deformable
      DETR, RT-DETR).
    - {"scores": [n, boxes], "labels": [n, boxes], "boxes": [n, boxes, 4]}: the scores are taken unchanged. If there
      are fewer boxes than the tensor has room for, set the remaining scores to 0.

    Other entries of the dict are ignored. `reduce` chooses the highest scores, on the device. NaN or infinity among the
    scores, or in a box that would be returned, is an error of that request: leaving the box out would make a broken
    result look like an empty result. Boxes without an area in the picture are left out.

    Args:
        class_names: name of each class from 0; by default the names of ``id2label`` in config.json, else the numbers.
        box_format: "xyxy" (corners), "cxcywh" (centre and size) or "xywh" (upper left corner and size); by default
            "cxcywh" for "pred_boxes" and "xyxy" for "boxes".
        normalized: whether boxes are fractions of the width and height that the model saw, rather than pixels; by
            default true for "pred_boxes" and false for "boxes".
        no_object: whether the last class of the logits means "no object".
        threshold: only boxes with a higher score are returned.
        max_detections: largest number of boxes returned, the best of an input or of a whole scene; None for all.
            Without a limit, and for each tile of a scene, the best 1000 boxes of a forward pass are sent. ``omitted``
            of the result is the number of other boxes above the threshold.
        iou_threshold: among boxes of a class whose intersection over union is larger, only the best is returned
            (non-maximum suppression); None for all. Where tiles of a scene overlap, objects are found twice: for boxes
            from different tiles, None means 0.5.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "detection"
    modality: ClassVar[str] = "structured"

    def __init__(
        self,
        *,
        class_names: Sequence[str] | None = None,
        box_format: str | None = None,
        normalized: bool | None = None,
        no_object: bool = True,
        threshold: float = 0.5,
        max_detections: int | None = None,
        iou_threshold: float | None = None,
    ) -> None:
        if box_format is not None and box_format not in FORMATS:
            raise OptionError(f"box_format must be one of {', '.join(FORMATS)}, got {box_format!r}")
        self._labels = Labels(None if class_names is None else checked_names(class_names))
        self._box_format = box_format
        self._normalized = None if normalized is None else checked_switch("normalized", normalized)
        self._no_object = checked_switch("no_object", no_object)
        self._threshold = checked_part("threshold", threshold)
        self._most = None if max_detections is None else checked_count("max_detections", max_detections)
        self._iou_threshold = None if iou_threshold is None else checked_part("iou_threshold", iou_threshold)

    @property
    def model_classes(self) -> Sequence[ModelClass]:
        """Classes that the model detects. Classes without a known name are left out."""
        return self._labels.classes

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create an instance. Class names that are not set default to the names in the model's ``config.json``."""
        processor = cls(**options)
        processor._labels = processor._labels.or_those_of(config)
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> dict[str, torch.Tensor]:
        """Return the ``k`` boxes with the highest scores of each request. ``k`` is equal for all requests.

        Returns "scores", float32 [n, k], highest first, NaN first, and equal scores in their original order; "labels",
        int32 [n, k]; "boxes", or "relative_boxes" if normalised, float32 [n, k, 4] as xmin, ymin, xmax, ymax; and
        "above", int32 [n], the number of scores above the threshold before the choice.
        """
        import torch

        if not isinstance(output, dict):
            raise ReduceError(f"{_TAKES}, got {describe(output)}")
        from_queries = {"logits", "pred_boxes"} <= set(output)
        candidates = self._from_queries(output) if from_queries else _from_scores(output)
        box_format = self._box_format or ("cxcywh" if from_queries else "xyxy")
        relative = from_queries if self._normalized is None else self._normalized
        most = self._sent_count(params)
        best = candidates.scores.sort(dim=1, descending=True, stable=True)
        order = best.indices[:, :most]
        at = candidates.box_indices.gather(1, order).unsqueeze(2).expand(-1, -1, 4)
        boxes = as_corners(candidates.boxes.to(torch.float32).gather(1, at), box_format)
        return {
            "scores": best.values[:, :most].contiguous(),
            "labels": candidates.labels.gather(1, order).to(torch.int32),
            "relative_boxes" if relative else "boxes": boxes,
            "above": (candidates.scores > self._threshold).sum(dim=1).to(torch.int32),
        }

    def _sent_count(self, params: OutputParams) -> int:
        """Return the maximum number of boxes that the worker sends for each input or tile."""
        if self._most is None:
            return _MAX_SENT
        most = self._most * (1 if self._iou_threshold is None else _BEFORE_SUPPRESSION)
        return max(most, _MAX_SENT) if params.part else most

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> DetectionOutput:
        """Build a `DetectionOutput`. Raise DecodeError if a score or a returned box contains NaN or infinity."""
        from vllm_mmout.outputs import Detection, DetectionOutput
        from vllm_mmout.outputs.detection import within

        scores, labels, boxes, relative, above = _checked_raw(raw)
        if not scores[scores != -math.inf].isfinite().all():
            raise DecodeError(f"the model's scores hold NaN or infinity, so no object can be told; {_REMEDY}")
        chosen = scores > self._threshold
        omitted = above - int(chosen.sum())
        scores, labels, boxes = scores[chosen], labels[chosen], boxes[chosen]
        if not boxes.isfinite().all():
            raise DecodeError(f"a box with a score above the threshold holds NaN or infinity; {_REMEDY}")
        left = (boxes[:, 2:] > boxes[:, :2]).all(dim=1).nonzero().flatten()
        if self._iou_threshold is not None:
            left = left[suppressed(boxes[left], labels[left], self._iou_threshold)]
        best = left if params.part else left[: self._most]
        omitted += len(left) - len(best)
        detections = [
            Detection(id=number, label=self._labels.of(number), score=score, box=tuple(box))
            for number, score, box in zip(
                labels[best].tolist(), scores[best].tolist(), boxes[best].tolist(), strict=True
            )
        ]
        if relative:
            return DetectionOutput(detections=within(detections, 1, 1), units="relative", omitted=omitted)
        return DetectionOutput(detections=detections, omitted=omitted)

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the objects found in the tiles of a scene. An object in several tiles is returned once."""
        if not isinstance(parts, Parts):
            return super().assemble(parts, params)
        threshold = _SAME_OBJECT_IOU if self._iou_threshold is None else self._iou_threshold
        return joined_boxes(parts, threshold, self._most)

    def _from_queries(self, output: dict[str, torch.Tensor]) -> _Candidates:
        """Return the detections of a DETR model: for each object query, its best class or all its classes.

        The option ``no_object`` selects the best class only.
        """
        import torch

        logits, boxes = output["logits"], output["pred_boxes"]
        least = 2 if self._no_object else 1
        valid = logits.ndim == 3 and logits.is_floating_point() and logits.shape[2] >= least
        if not valid or not boxes.is_floating_point() or boxes.shape != (*logits.shape[:2], 4):
            raise ReduceError(f"{_TAKES}, got logits {describe(logits)} and pred_boxes {describe(boxes)}")
        requests, queries, classes = logits.shape
        self._labels.check_count(classes - 1 if self._no_object else classes)
        if self._no_object:
            scores, labels = logits.softmax(dim=2, dtype=torch.float32)[..., :-1].max(dim=2)
            box_indices = torch.arange(queries, device=logits.device)
        else:
            # One request at a time: the last bits of torch's vectorised exp depend on the position in the tensor.
            scores = torch.stack([request.sigmoid().flatten() for request in logits.to(torch.float32)])
            number = torch.arange(queries * classes, device=logits.device)
            labels, box_indices = (number % classes).expand(requests, -1), number // classes
        return _Candidates(scores, labels, box_indices.expand(requests, -1), boxes)


class _Candidates(NamedTuple):
    scores: torch.Tensor
    """Score of each candidate detection, float32 [n, candidates]."""
    labels: torch.Tensor
    """Class id of each candidate detection, integers [n, candidates]."""
    box_indices: torch.Tensor
    """Index into ``boxes`` of each candidate detection, int64 [n, candidates]. Several candidates may share a box."""
    boxes: torch.Tensor
    """Boxes in the model's format, floating point [n, boxes, 4]."""


def _from_scores(output: dict[str, torch.Tensor]) -> _Candidates:
    import torch

    if not {"scores", "labels", "boxes"} <= set(output):
        raise ReduceError(f"{_TAKES}, got a dict of {', '.join(sorted(output)) or 'nothing'}")
    scores, labels, boxes = output["scores"], output["labels"], output["boxes"]
    floating = scores.ndim == 2 and scores.is_floating_point() and boxes.is_floating_point()
    integer_labels = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if not floating or not integer_labels or labels.shape != scores.shape or boxes.shape != (*scores.shape, 4):
        got = ", ".join(f"{name} {describe(output[name])}" for name in ("scores", "labels", "boxes"))
        raise ReduceError(f"{_TAKES}, got {got}")
    box_indices = torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    return _Candidates(scores.to(torch.float32), labels, box_indices, boxes)


def _checked_raw(raw: Raw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool, int]:
    """Check the dict returned by ``reduce``, and return its entries as a tuple.

    The tuple holds the scores, the labels, the boxes, whether the boxes are relative, and the number of scores above
    the threshold.
    """
    for relative, name in ((False, "boxes"), (True, "relative_boxes")):
        if isinstance(raw, dict) and set(raw) == {"scores", "labels", name, "above"}:
            return raw["scores"], raw["labels"], raw[name], relative, int(raw["above"])
    raise not_of_reduce("detection takes scores, labels, boxes and above from reduce")
