"""Convert formats of bounding boxes, and apply non-maximum suppression."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


FORMATS = ("xyxy", "cxcywh", "xywh")
"""Formats of bounding boxes: two corners; centre and size; upper left corner and size."""


def as_corners(boxes: torch.Tensor, box_format: str) -> torch.Tensor:
    """Convert boxes, floating point [..., 4], from one of `FORMATS` to (xmin, ymin, xmax, ymax)."""
    import torch

    if box_format == "xyxy":
        return boxes
    place, size = boxes[..., :2], boxes[..., 2:]
    low = place - 0.5 * size if box_format == "cxcywh" else place
    high = place + (0.5 * size if box_format == "cxcywh" else size)
    return torch.cat([low, high], dim=-1)


def suppressed(boxes: torch.Tensor, labels: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes that non-maximum suppression keeps, as ``torchvision.ops.batched_nms`` does.

    ``boxes`` [n, 4] are corners, sorted by falling score; ``labels`` are [n]. A box suppresses boxes of its own label
    only. The indices are int64, in order.
    """
    import torch

    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = torch.arange(len(boxes))
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(int(best))
        low, high = torch.maximum(boxes[best, :2], boxes[left, :2]), torch.minimum(boxes[best, 2:], boxes[left, 2:])
        common = (high - low).clamp(min=0).prod(dim=1)
        overlap = common / (areas[best] + areas[left] - common)
        left = left[~((overlap > iou_threshold) & (labels[left] == labels[best]))]
    return torch.tensor(kept, dtype=torch.int64)
