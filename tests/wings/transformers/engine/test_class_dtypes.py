"""Class ids of heads of transformers: the dtype holds every class, whatever the classes are called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.mask2former.image_processing_pil_mask2former import Mask2FormerImageProcessorPil

from vllm_mmout.params import OutputParams
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.processors.segments import ImageSegmentationProcessor
from vllm_mmout.wings.transformers.processors.semantic_segmentation import SemanticSegmentationProcessor

pytestmark = pytest.mark.engine
CLASSES = OutputParams(output="classes")


class Mask2Former(ImageSegmentationProcessor):
    """Of a folder with the processor of Mask2Former."""

    image_processor = Mask2FormerImageProcessorPil()


@pytest.mark.parametrize(("count", "dtype"), [(255, np.uint8), (256, np.uint16), (300, np.uint16)])
def test_classes_of_segments_do_not_wrap(count, dtype):
    """The last classes of a model whose names repeat are those of transformers."""
    classes = torch.full((1, 2, count + 1), -9.0)
    classes[0, 0, count - 1] = classes[0, 1, 2] = 9.0
    masks = torch.full((1, 2, 8, 8), -9.0)
    masks[0, 0, :, :4] = masks[0, 1, :, 4:] = 9.0
    output = {"class_queries_logits": classes, "masks_queries_logits": masks, SIZE: torch.tensor([[8, 8]])}
    processor = Mask2Former()
    raster = processor.decode(processor.reduce(output, CLASSES)[0], CLASSES)
    assert raster.dtype == dtype
    assert raster.nodata == np.iinfo(dtype).max
    np.testing.assert_array_equal(raster.array[0], [[count - 1] * 4 + [2] * 4] * 8)


def test_repeated_names_are_kept_by_their_number():
    """Names of config.json that repeat are the names of the classes all the same."""
    names = {str(number): f"name {number % 7}" for number in range(300)}
    processor = SemanticSegmentationProcessor.from_config({"id2label": names}, {})
    logits = torch.zeros(1, 300, 4, 4)
    logits[0, 258] = 1.0
    output = {"logits": logits, SIZE: torch.tensor([[8, 8]])}
    raster = processor.decode(processor.reduce(output, CLASSES)[0], CLASSES)
    assert (raster.dtype, np.unique(raster.array).tolist()) == (np.uint16, [258])
    assert raster.class_names == tuple(names.values())
