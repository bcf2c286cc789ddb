"""Objects of heads of transformers: limits, repeated texts, and boxes without an area."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deformable_detr.image_processing_pil_deformable_detr import DeformableDetrImageProcessorPil

from vllm_mmout.outputs import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.transformers.inputs import SIZE as KEY
from vllm_mmout.wings.transformers.processors.objects import ObjectDetectionProcessor, ZeroShotObjectDetectionProcessor
from vllm_mmout.wings.transformers.prompts import TEXTS, as_tensor

pytestmark = pytest.mark.engine
SIZE = (80, 120)
PARAMS = OutputParams()


class Deformable(ObjectDetectionProcessor):
    """Of a folder with the processor of Deformable DETR, which gives 100 objects of a picture."""

    image_processor = DeformableDetrImageProcessorPil()


class Grounded(ZeroShotObjectDetectionProcessor):
    """Of a folder whose processor gives what its class says."""

    boxes = ((10.0, 10.0, 30.0, 30.0), (50.0, 20.0, 50.0, 20.0), (130.0, 10.0, 140.0, 20.0), (0.0, 5.0, 9.0, 5.0))

    class processor:  # noqa: N801 - a property of the class above
        """As OWL-ViT's."""

        @staticmethod
        def post_process_grounded_object_detection(outputs, target_sizes, text_labels, threshold=0.1):
            """Give the boxes."""
            labels = torch.tensor([0, 1, 2, 1])
            boxes, scores = torch.tensor(Grounded.boxes), torch.tensor([0.9, 0.8, 0.7, 0.6])
            return [
                {
                    "boxes": boxes,
                    "scores": scores,
                    "labels": labels,
                    "text_labels": [text_labels[0][at] for at in labels],
                }
            ]


def raw(count=300, classes=2):
    """What a model emits for one request."""
    generator = torch.Generator().manual_seed(3)
    return {
        "logits": torch.rand(count, classes, generator=generator) + 0.1,
        "pred_boxes": torch.rand(count, 4, generator=generator) / 4 + 0.3,
        KEY: torch.tensor(SIZE),
    }


def test_a_processors_own_limit_is_counted_and_does_not_hold_for_tiles():
    """A picture has the 100 objects of transformers, and says how many more there are; a tile has them all."""
    processor = Deformable()
    found = processor.decode(raw(), PARAMS)
    assert (len(found.detections), found.omitted) == (100, 500)
    tile = processor.decode(raw(), PARAMS.of_part())
    assert (len(tile.detections), tile.omitted) == (600, 0)
    assert tile.detections[:100] == found.detections


def test_a_limit_keeps_the_best_in_their_order():
    """max_detections counts objects of a picture too."""
    processor = Deformable(max_detections=10)
    found = processor.decode(raw(), PARAMS)
    assert (len(found.detections), found.omitted) == (10, 590)
    assert found.detections == Deformable().decode(raw(), PARAMS).detections[:10]


def test_zero_shot_boxes_without_an_area_are_kept():
    """All rows of the folder's processor come back, within the picture, also when laid on the input."""
    given = {
        "logits": torch.zeros(1),
        TEXTS: torch.from_numpy(as_tensor(["a", "b", "a"]).copy()),
        KEY: torch.tensor(SIZE),
    }
    found = Grounded().decode(given, PARAMS).placed(Source(size=SIZE))
    assert [one.box for one in found.detections] == [
        (10, 10, 30, 30),
        (50, 20, 50, 20),
        (120, 10, 120, 20),
        (0, 5, 9, 5),
    ]
    assert [(one.id, one.label) for one in found.detections] == [(0, "a"), (1, "b"), (2, "a"), (1, "b")]
