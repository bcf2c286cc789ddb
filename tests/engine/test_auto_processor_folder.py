"""Folders of transformers' own image models, served without a mapper and without a line of code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from model_folders import engine_here
from PIL import Image
from rasterio.transform import Affine

from vllm_mmout import OutputParams
from vllm_mmout.errors import ModelError

pytestmark = pytest.mark.engine
SIZE = {"height": 64, "width": 96}
PIXELS = np.random.default_rng(9).integers(1, 256, (120, 160, 3), np.uint8)


def save(folder, model, processor, name):
    """What ``save_pretrained`` writes, with two entries of config.json changed for vLLM."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text())
    table = {"model": f"transformers:{type(model).__name__}", "output_processor": name}
    file.write_text(json.dumps({**config, "model_type": "mmout", "mmout": table}))
    return str(folder)


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory):
    """An engine of a small SegFormer with random weights, and transformers' own model and processor."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation, ViTImageProcessor

    torch.manual_seed(3)
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 16, 16], "decoder_hidden_size": 16}
    config = SegformerConfig(num_labels=3, num_attention_heads=[1, 1, 2, 2], **sizes)
    model = SegformerForSemanticSegmentation(config).eval().requires_grad_(requires_grad=False)
    processor = ViTImageProcessor(size=SIZE)
    return engine_here(save(tmp_path_factory.mktemp("seg"), model, processor, "segmentation")), model, processor


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A GeoTIFF of the pixels whose first 40 columns hold no observation."""
    file = tmp_path_factory.mktemp("scene") / "scene.tif"
    array = np.moveaxis(PIXELS, -1, 0).copy()
    array[:, :, :40] = 0
    place = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 4_500_000), "nodata": 0}
    with rasterio.open(file, "w", "GTiff", width=160, height=120, count=3, dtype="uint8", **place) as dataset:
        dataset.write(array)
    return file


def logits(model, processor, picture):
    """What transformers gives."""
    return model(**processor(images=picture, return_tensors="pt")).logits[0]


def one(llm, data, **options):
    (result,) = llm.generate([data], OutputParams(**options), use_tqdm=False)
    return result.outputs


def test_the_classes_are_those_of_transformers(segmentation):
    """A picture gives the argmax of the logits that transformers computes for it, as large as the model makes them."""
    llm, model, processor = segmentation
    picture = Image.fromarray(PIXELS)
    expected = logits(model, processor, picture)
    assert expected.shape == (3, 16, 24)
    classes = expected.argmax(0).numpy()
    assert len(np.unique(classes)) > 1
    np.testing.assert_array_equal(one(llm, picture).array[0], classes)
    np.testing.assert_allclose(
        one(llm, picture, output="probabilities").array, expected.softmax(0).numpy(), rtol=0, atol=1e-6
    )


def test_features_of_the_processor_are_an_input_too(segmentation):
    """What transformers' processor gives goes to the model as it is."""
    llm, model, processor = segmentation
    features = processor(images=Image.fromarray(PIXELS), return_tensors="pt")
    expected = model(**features).logits[0].argmax(0).numpy()
    np.testing.assert_array_equal(one(llm, features).array[0], expected)


def test_a_smaller_output_keeps_the_extent_of_the_scene(segmentation, scene, tmp_path):
    """The result of a GeoTIFF has its coordinate system and bounds, and pixels that are as much larger."""
    llm, _, _ = segmentation
    one(llm, scene, path=str(tmp_path / "classes.tif"))
    with rasterio.open(scene) as before, rasterio.open(tmp_path / "classes.tif") as after:
        assert (after.height, after.width) == (16, 24)
        assert after.crs == before.crs
        np.testing.assert_allclose(after.bounds, before.bounds, rtol=0, atol=1e-6)
        assert after.res == pytest.approx((160 * 10 / 24, 120 * 10 / 16))


def test_what_was_not_observed_is_nodata_in_the_smaller_output(segmentation, scene):
    """The left quarter of the scene holds no observation, nor does that of the result; the rest is transformers'."""
    llm, model, processor = segmentation
    with rasterio.open(scene) as dataset:
        pixels = np.moveaxis(dataset.read(), 0, -1)
    expected = logits(model, processor, Image.fromarray(pixels)).argmax(0).numpy()
    array = one(llm, scene).array[0]
    np.testing.assert_array_equal(array[:, :6], 255)
    np.testing.assert_array_equal(array[:, 6:], expected[:, 6:])


def test_labels_and_scores_are_those_of_the_pipeline(tmp_path):
    """A classification model gives what the pipeline of transformers gives, with the labels of config.json."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline

    torch.manual_seed(4)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    labels = dict(enumerate(["maize", "soy", "winter wheat", "fallow", "rye", "oat", "hop"]))
    config = ViTConfig(image_size=32, patch_size=8, id2label=labels, initializer_range=0.5, **sizes)
    model = ViTForImageClassification(config).eval()
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    llm = engine_here(save(tmp_path, model, processor, "classification"))
    picture = Image.fromarray(PIXELS)
    expected = pipeline("image-classification", model=model, image_processor=processor)(picture, top_k=5)
    found = one(llm, picture).classes
    assert [entry.label for entry in found] == [entry["label"] for entry in expected]
    assert [entry.score for entry in found] == pytest.approx([entry["score"] for entry in expected], abs=1e-6)


def test_weights_of_transformers_that_do_not_fit_are_named(tmp_path):
    """A missing, an unexpected and an unlike weight are named, though the others are stored by older names."""
    from safetensors.torch import load_file, save_file
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(image_size=16, patch_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    folder = save(tmp_path, ViTForImageClassification(config), ViTImageProcessor(), "classification")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["classifier.bias"]
    weights |= {"tail": torch.zeros(1), "classifier.weight": torch.zeros(5, 8)}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        engine_here(folder)
    for part in ("missing: classifier.bias;", "unexpected: tail;", "classifier.weight (the model has float32 [2, 8]"):
        assert part in str(caught.value)
