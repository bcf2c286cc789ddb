"""Folders of the DETR family, which transformers marks as encoder-decoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from detector_folders import DETECTORS, detector
from model_folders import engine_here
from PIL import Image
from transformers import ViTImageProcessor
from transformers.models.deformable_detr.image_processing_pil_deformable_detr import DeformableDetrImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

pytestmark = pytest.mark.engine
SIZE = {"height": 64, "width": 96}
PICTURES = [Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 96, 3), np.uint8)) for seed in range(3)]
WITH_NO_OBJECT = ("Detr", "TableTransformer")


def saved(folder, model, processor, **entries):
    """What ``save_pretrained`` writes, with the two entries of config.json that the docs ask for."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text())
    assert config["is_encoder_decoder"] is True
    no_object = type(model).__name__.startswith(WITH_NO_OBJECT)
    table = {"model": f"transformers:{type(model).__name__}", "output_processor": "detection"}
    table |= {"no_object": no_object, "threshold": 0.0}
    file.write_text(json.dumps({**config, "model_type": "mmout", "mmout": table, **entries}))
    return str(folder)


def by_transformers(model, processor, picture):
    """Label, score and box in pixels of the picture, of each object, as transformers' own post-processing has them."""
    with torch.inference_mode():
        raw = model(**processor(images=picture, return_tensors="pt"))
    softmax = type(model).__name__.startswith(WITH_NO_OBJECT)
    post = DetrImageProcessorPil if softmax else DeformableDetrImageProcessorPil
    (found,) = post.post_process_object_detection(None, raw, threshold=0, target_sizes=[picture.size[::-1]])
    edges = torch.tensor([*picture.size, *picture.size])
    boxes = found["boxes"].clamp(min=0).minimum(edges)
    rows = zip(found["labels"].tolist(), found["scores"].tolist(), boxes.tolist(), strict=True)
    return [(label, pytest.approx(score, abs=1e-5), pytest.approx(box, abs=1e-2)) for label, score, box in rows]


@pytest.mark.parametrize(
    "family",
    [family if family in ("Detr", "DFine") else pytest.param(family, marks=pytest.mark.slow) for family in DETECTORS],
)
def test_the_boxes_are_those_of_transformers(family, tmp_path):
    """A folder of each family is served as transformers wrote it, and gives the boxes that transformers computes."""
    model = detector(family)
    processor = DetrImageProcessorPil(size=SIZE) if family == "Detr" else ViTImageProcessor(size=SIZE)
    llm = engine_here(saved(tmp_path, model, processor), max_num_seqs=4)
    results = llm.generate(PICTURES, use_tqdm=False)
    for picture, result in zip(PICTURES, results, strict=True):
        expected = by_transformers(model, processor, picture)
        found = [(one.id, one.score, list(one.box)) for one in result.outputs.detections]
        assert len(found) == len(expected) > 3
        assert [one for one in found if one not in expected] == []
