"""Folders as ``save_pretrained`` wrote them: each head gives what transformers gives with the same processor."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import engine_here
from PIL import Image
from small_heads import HEADS, head, processor_of, saved
from transformers.modeling_outputs import ModelOutput

from vllm_mmout.errors import ModelError

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(9)
PICTURES = [
    Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), np.uint8))
    for height, width in ((80, 112), (64, 64), (80, 112), (50, 40))
]
SOUNDS = [RANDOM.normal(0, 0.1, count).astype(np.float32) for count in (1600, 2400, 1600)]
VIDEOS = [list(RANDOM.integers(0, 256, (4, 40, 50, 3), np.uint8)) for _ in range(2)]
SERIES = [RANDOM.normal(0, 1, (32, 2)).astype(np.float32) for _ in range(2)]
THRESHOLD = 0.2


def inputs_of(architecture):
    """What its requests are, in any order of sizes."""
    if architecture.startswith(("AST", "Wav2Vec2")):
        return SOUNDS
    return VIDEOS if architecture.startswith("Video") else SERIES if architecture.startswith("Patch") else PICTURES


def by_transformers(model, processor, data):
    """The output of transformers for one input."""
    with torch.inference_mode():
        if processor is None:
            return model(torch.tensor(data)[None])
        options = {"sampling_rate": 16_000} if isinstance(data, np.ndarray) else {}
        features = processor(data, return_tensors="pt", **options)
        features.pop("pixel_mask", None)
        return model(**features)


def check(architecture, processor, picture, raw, found):
    """Hold a result to that of transformers."""
    size = [picture.size[::-1]] if hasattr(picture, "size") and hasattr(picture, "getbands") else None
    if architecture.endswith("SemanticSegmentation"):
        (expected,) = processor.post_process_semantic_segmentation(raw, target_sizes=size)
        np.testing.assert_array_equal(found.array[0], expected)
    elif architecture.startswith("GLPN") or architecture.endswith("DepthEstimation"):
        (expected,) = processor.post_process_depth_estimation(raw, target_sizes=size)
        np.testing.assert_allclose(found.array[0], expected["predicted_depth"], rtol=1e-5, atol=1e-5)
    elif architecture.endswith("SuperResolution"):
        rows, cols = found.array.shape[1:]
        assert (rows, cols) == (2 * size[0][0], 2 * size[0][1])
        expected = (raw.reconstruction[0].clamp(0, 1) * 255).round()[:, :rows, :cols]
        assert np.abs(found.array.astype(int) - expected.numpy().astype(int)).max() <= 1
    elif architecture.endswith("ObjectDetection"):
        (expected,) = processor.post_process_object_detection(raw, threshold=THRESHOLD, target_sizes=size)
        boxes = torch.maximum(expected["boxes"], torch.zeros(1)).numpy().clip(0, [*picture.size, *picture.size])
        assert [one.id for one in found.detections] == expected["labels"].tolist()
        assert len(found.detections) > 0
        assert [one.score for one in found.detections] == pytest.approx(expected["scores"].tolist(), abs=1e-5)
        np.testing.assert_allclose([one.box for one in found.detections], boxes, rtol=1e-5, atol=1e-4)
    elif architecture.endswith("Classification") and "logits" in raw:
        expected = raw.logits[0].softmax(-1).sort(descending=True, stable=True)
        assert [one.id for one in found.classes] == expected.indices.tolist()
        assert [one.score for one in found.classes] == pytest.approx(expected.values.tolist(), abs=1e-5)
    else:
        check_tensors(raw, found)


def check_tensors(raw, found):
    """Each tensor is that of transformers."""
    arrays = found.arrays if hasattr(found, "arrays") else found.array
    arrays = arrays if isinstance(arrays, dict) else {next(iter(raw)): arrays}
    assert arrays
    for name, array in arrays.items():
        key, _, number = name.partition(".")
        expected = raw[key][int(number)] if number else raw[key]
        np.testing.assert_allclose(array, expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", HEADS)
def test_a_folder_gives_what_transformers_gives(architecture, tmp_path):
    """Alone and in a batch of inputs of several sizes, from the folder as it was saved."""
    model, processor = head(architecture)
    options = {"threshold": THRESHOLD} if architecture.endswith("ObjectDetection") else {}
    folder = saved(tmp_path, model, processor)
    llm = engine_here(folder, max_num_seqs=4, additional_config={"mmout": options})
    inputs = inputs_of(architecture)
    raws = [by_transformers(model, processor, data) for data in inputs]
    assert isinstance(raws[0], ModelOutput)
    together = llm.generate(inputs, use_tqdm=False)
    for data, raw, result in zip(inputs, raws, together, strict=True):
        check(architecture, processor, data, raw, result.outputs)
    (alone,) = llm.generate(inputs[:1], use_tqdm=False)
    check(architecture, processor, inputs[0], raws[0], alone.outputs)


def test_one_of_several_outputs_is_an_embedding(tmp_path):
    """The vector of an encoder, by the name that transformers has for it."""
    model, processor = head("ViTModel")
    asked = {"output_processor": "embedding", "tensor": "pooler_output"}
    llm = engine_here(saved(tmp_path, model, processor), additional_config={"mmout": asked})
    (found,) = llm.generate(PICTURES[:1], use_tqdm=False)
    expected = by_transformers(model, processor, PICTURES[0]).pooler_output[0]
    np.testing.assert_allclose(found.outputs.array, expected, rtol=1e-5, atol=1e-5)


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    """The first lines of transformers.md, with a small folder of the name that they have."""
    page = (Path(__file__).parents[4] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    started = {"segformer-b0": engine_here(saved(tmp_path / "segformer-b0", *head("SegformerForSemanticSegmentation")))}
    monkeypatch.setattr("vllm.LLM", started.__getitem__)
    PICTURES[0].save("photo.jpg")
    exec(compile(block, "<docs/transformers.md>", "exec"), {})  # noqa: S102 - the snippet is our own
    with Image.open("mask.png") as mask:
        assert mask.size == PICTURES[0].size


def test_a_model_that_leaves_its_channels_to_its_backbone_starts(tmp_path):
    """Published folders of DPT have ``num_channels: null``. The result is that of transformers."""
    from transformers import Dinov2Config, DPTConfig, DPTForDepthEstimation

    backbone = Dinov2Config(
        image_size=56, patch_size=14, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, mlp_ratio=2,
        out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False,
    )  # fmt: skip
    nothing = dict.fromkeys(("num_channels", "image_size", "patch_size", "num_hidden_layers"))
    sizes = {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8, "hidden_size": 16}
    model = DPTForDepthEstimation(DPTConfig(backbone_config=backbone, **sizes, **nothing)).eval()
    processor = processor_of("dpt", {"size": {"height": 56, "width": 56}})
    llm = engine_here(saved(tmp_path, model, processor))
    assert llm.llm_engine.vllm_config.model_config.hf_config.num_channels is None
    (found,) = llm.generate(PICTURES[:1], use_tqdm=False)
    check(
        "DPTForDepthEstimation", processor, PICTURES[0], by_transformers(model, processor, PICTURES[0]), found.outputs
    )


def test_a_model_of_other_channels_is_refused_at_the_start(tmp_path):
    """The error names the number of channels and the way to serve the model."""
    model, processor = head("SegformerForSemanticSegmentation", num_channels=6)
    with pytest.raises(ModelError, match=r"takes 6 channels \(num_channels in its config.json\).*RasterMapper"):
        engine_here(saved(tmp_path, model, processor))
