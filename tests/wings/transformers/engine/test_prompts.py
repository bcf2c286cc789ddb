"""Heads that take a text, points, boxes or another picture: each gives what transformers gives for the same request."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
import torch
from model_folders import engine_here
from PIL import Image
from prompted_heads import prompted
from rasterio.transform import Affine

from vllm_mmout.errors import InputError

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(4)
LARGE, SMALL, SQUARE = (
    Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), np.uint8))
    for height, width in ((80, 112), (40, 56), (64, 64))
)


def started(architecture, folder, **options):
    """Start an engine of a small model by its folder alone; return it, the model and its processor."""
    folder.mkdir(exist_ok=True)
    model, processor = prompted(architecture, folder)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    llm = engine_here(str(folder), max_num_seqs=4, additional_config={"mmout": options})
    return llm, model, processor


def results(llm, requests):
    """What the requests give together; the first gives the same alone."""
    together = [result.outputs for result in llm.generate(requests, use_tqdm=False)]
    (alone,) = llm.generate(requests[:1], use_tqdm=False)
    assert repr(alone.outputs) == repr(together[0])
    return together


def by_transformers(model, **features):
    features.pop("original_sizes", None)
    features.pop("reshaped_input_sizes", None)
    with torch.inference_mode():
        return model(**features)


def size_of(picture):
    return picture.size[::-1]


def test_texts_name_objects(tmp_path):
    """Any number of texts a request, of pictures of several sizes; each box of transformers, without an area too."""
    llm, model, processor = started("OwlViTForObjectDetection", tmp_path, threshold=0.0)
    requests = [
        {"image": LARGE, "text": ["a field", "wet"]},
        {"image": SMALL, "text": ["dry"]},
        {"image": LARGE, "text": "a field"},
    ]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        texts = [asked["text"]] if isinstance(asked["text"], str) else asked["text"]
        raw = by_transformers(model, **processor(images=asked["image"], text=[texts], return_tensors="pt"))
        (expected,) = processor.post_process_grounded_object_detection(
            raw, threshold=0.0, target_sizes=[size_of(asked["image"])], text_labels=[texts]
        )
        width, height = asked["image"].size
        boxes = expected["boxes"].numpy().clip(0, [width, height, width, height])
        assert len(boxes)
        assert [one.label for one in found.detections] == expected["text_labels"]
        assert [one.id for one in found.detections] == expected["labels"].tolist()
        np.testing.assert_allclose([one.score for one in found.detections], expected["scores"].numpy(), rtol=1e-5)
        np.testing.assert_allclose([one.box for one in found.detections], boxes, rtol=1e-5, atol=1e-4)


def test_texts_name_objects_of_a_scene(tmp_path):
    """A raster that lies somewhere is cut into tiles of what the model sees, and every tile has the texts."""
    llm, _, _ = started("OwlViTForObjectDetection", tmp_path / "model", threshold=0.0)
    with rasterio.open(
        tmp_path / "scene.tif",
        "w",
        "GTiff",
        width=80,
        height=64,
        count=3,
        dtype="uint8",
        crs="EPSG:32614",
        transform=Affine(10, 0, 500_000, 0, -10, 4_500_000),
    ) as dataset:
        dataset.write(RANDOM.integers(0, 256, (3, 64, 80), np.uint8))
    (result,) = llm.generate([{"image": tmp_path / "scene.tif", "text": ["wet", "a field"]}], use_tqdm=False)
    found = result.outputs
    assert found.size == (64, 80)
    assert {one.label for one in found.detections} == {"wet", "a field"}
    assert max(one.box[2] for one in found.detections) > 32  # beyond the first tile
    corner = found.geojson["features"][0]["geometry"]["coordinates"][0][0]
    assert 500_000 <= corner[0] <= 500_800


def test_texts_classify_a_picture(tmp_path):
    """The texts by their share, each with its number."""
    llm, model, processor = started("CLIPModel", tmp_path)
    requests = [{"image": LARGE, "text": ["wet", "dry", "a field"]}, {"image": SMALL, "text": ["a", "b"]}]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        features = processor(images=asked["image"], text=asked["text"], return_tensors="pt", padding=True)
        expected = by_transformers(model, **features).logits_per_image[0].softmax(0)
        assert {one.label: one.score for one in found.classes} == pytest.approx(
            dict(zip(asked["text"], expected.tolist(), strict=True)), abs=1e-5
        )
        assert found.classes[0].id == int(expected.argmax())


def test_texts_segment_a_picture(tmp_path):
    """A band a text, at the picture's size."""
    llm, model, processor = started("CLIPSegForImageSegmentation", tmp_path)
    requests = [{"image": LARGE, "text": ["wet", "dry"]}, {"image": SMALL, "text": "wet"}]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        texts = [asked["text"]] if isinstance(asked["text"], str) else asked["text"]
        features = processor(
            images=[asked["image"]] * len(texts), text=texts, padding="max_length", return_tensors="pt"
        )
        logits = by_transformers(model, **features).logits.reshape(1, len(texts), 32, 32)
        expected = torch.nn.functional.interpolate(logits, size_of(asked["image"]), mode="bilinear")[0].sigmoid()
        assert found.band_names == tuple(texts)
        np.testing.assert_allclose(found.array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "prompt",
    [
        {"input_points": [[10, 20]]},
        {"input_points": [[[10, 20], [30, 8]], [[5, 5], [60, 40]]], "input_labels": [[1, 0], [1, 1]]},
        {"input_boxes": [[4, 6, 40, 50], [20, 20, 60, 50]]},
    ],
    ids=["a point", "points of two objects", "boxes"],
)
def test_points_and_boxes_ask_for_masks(prompt, tmp_path):
    """Of what the model proposes for each object the mask with the highest score, at the picture's size."""
    llm, model, processor = started("SamModel", tmp_path)
    nested = {
        name: [value if np.ndim(value) > 2 or "points" not in name else [value]] for name, value in prompt.items()
    }
    found = results(llm, [{"image": picture, **prompt} for picture in (LARGE, SQUARE, LARGE)])
    for picture, masks in zip((LARGE, SQUARE), found, strict=False):
        features = processor(images=picture, return_tensors="pt", **nested)
        raw = by_transformers(model, **features)
        (expected,) = processor.image_processor.post_process_masks(
            raw.pred_masks, features["original_sizes"], features["reshaped_input_sizes"]
        )
        best = raw.iou_scores[0].argmax(-1)
        assert masks.array.shape[1:] == size_of(picture)
        for number, which in enumerate(best.tolist()):
            np.testing.assert_array_equal(masks.array[number] > 0, expected[number, which])
            assert masks.band_names[number] == f"{number}: {raw.iou_scores[0, number, which]:.2f}"


def test_boxes_ask_for_poses(tmp_path):
    """The joints of each box, in pixels of the picture."""
    llm, model, processor = started("VitPoseForPoseEstimation", tmp_path)
    requests = [
        {"image": LARGE, "boxes": [[10, 10, 40, 60], [50, 5, 30, 70]]},
        {"image": SMALL, "boxes": [[0, 0, 20, 30]]},
    ]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        boxes = [np.array(asked["boxes"], float)]
        raw = by_transformers(model, **processor(asked["image"], boxes=boxes, return_tensors="pt"))
        (persons,) = processor.post_process_pose_estimation(raw, boxes=boxes)
        expected = np.concatenate([person["keypoints"] for person in persons])
        kept = np.concatenate([person["scores"] for person in persons]) >= 0
        np.testing.assert_allclose([(one.x, one.y) for one in found.keypoints], expected[kept], rtol=1e-5, atol=1e-4)
        assert {one.object for one in found.keypoints} <= set(range(len(asked["boxes"])))
        assert len(found.keypoints) > 0


def test_points_of_interest(tmp_path):
    """A picture alone; each has as many points as it has."""
    llm, model, processor = started("SuperPointForKeypointDetection", tmp_path)
    requests = [LARGE, SMALL, SQUARE]
    for picture, found in zip(requests, results(llm, requests), strict=True):
        raw = by_transformers(model, **processor(picture, return_tensors="pt"))
        (expected,) = processor.post_process_keypoint_detection(raw, [size_of(picture)])
        assert [(one.x, one.y) for one in found.keypoints] == [tuple(point) for point in expected["keypoints"].tolist()]
        assert [one.score for one in found.keypoints] == pytest.approx(expected["scores"].tolist(), abs=1e-5)
        assert len(found.keypoints) > 0


def test_two_pictures_are_matched(tmp_path):
    """Points of the one and the other, each in its own pixels."""
    llm, model, processor = started("LightGlueForKeypointMatching", tmp_path)
    requests = [{"image": LARGE, "other_image": SMALL}, {"image": SQUARE, "other_image": SQUARE}]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        pair = [asked["image"], asked["other_image"]]
        raw = by_transformers(model, **processor([pair], return_tensors="pt"))
        (expected,) = processor.post_process_keypoint_matching(raw, [tuple(map(size_of, pair))])
        assert found.arrays.keys() == expected.keys()
        for name, array in found.arrays.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)
    assert len(found.arrays["matching_scores"]) > 0


def test_a_trimap_asks_for_a_matte(tmp_path):
    """As large as the picture, which the processor pads."""
    llm, model, processor = started("VitMatteForImageMatting", tmp_path)
    trimap = Image.fromarray(RANDOM.integers(0, 256, (80, 112), np.uint8))
    (found,) = results(llm, [{"image": LARGE, "trimaps": trimap}])
    raw = by_transformers(model, **processor(images=LARGE, trimaps=trimap, return_tensors="pt"))
    np.testing.assert_allclose(found.array, raw.alphas[0, :, :80, :112], rtol=1e-5, atol=1e-5)


def test_a_question_is_answered_of_a_picture(tmp_path):
    """The answers by their scores."""
    llm, model, processor = started("ViltForQuestionAnswering", tmp_path)
    requests = [{"image": SQUARE, "text": "a wet field"}, {"image": SQUARE, "text": "dry"}]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        features = processor(images=asked["image"], text=asked["text"], return_tensors="pt")
        expected = by_transformers(model, **features).logits[0].softmax(0)
        assert {one.id: one.score for one in found.classes} == pytest.approx(
            dict(enumerate(expected.tolist())), abs=1e-5
        )


def test_a_question_is_answered_of_a_document(tmp_path):
    """Where the answer begins and ends among the tokens of its words."""
    llm, model, processor = started("LayoutLMv3ForQuestionAnswering", tmp_path)
    words, boxes = ["wet", "field"], [[0, 0, 50, 20], [50, 0, 100, 20]]
    (found,) = results(llm, [{"image": SQUARE, "text": "dry", "text_pair": words, "boxes": boxes}])
    raw = by_transformers(model, **processor(SQUARE, "dry", text_pair=words, boxes=boxes, return_tensors="pt"))
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(found.arrays[name], raw[name][0], rtol=1e-5, atol=1e-5)


def test_choices_are_weighed(tmp_path):
    """Each choice follows the text."""
    llm, model, tokenizer = started("BertForMultipleChoice", tmp_path)
    requests = [
        {"text": "a field", "choices": ["wet", "dry", "of a"]},
        {"text": "dry", "choices": ["a", "field of field"]},
    ]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        pairs = ([asked["text"]] * len(asked["choices"]), asked["choices"])
        features = tokenizer(*pairs, padding=True, return_tensors="pt")
        expected = by_transformers(model, **{k: v[None] for k, v in features.items()}).logits[0].softmax(0)
        assert {one.label: one.score for one in found.classes} == pytest.approx(
            dict(zip(asked["choices"], expected.tolist(), strict=True)), abs=1e-5
        )


def test_a_question_is_answered_of_a_text(tmp_path):
    """A folder that vLLM cannot load gives, without the argument, the start and end of the answer."""
    llm, model, tokenizer = started("BertForQuestionAnswering", tmp_path)
    requests = [{"text": "wet", "text_pair": "a field of dry"}, {"text": "dry", "text_pair": "a"}]
    for asked, found in zip(requests, results(llm, requests), strict=True):
        raw = by_transformers(model, **tokenizer(**asked, return_tensors="pt"))
        for name in ("start_logits", "end_logits"):
            np.testing.assert_allclose(found.arrays[name], raw[name][0], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # a FutureWarning since torch 2.14
def test_a_text_is_spoken(tmp_path):
    """In one forward, each text its own length."""
    llm, model, tokenizer = started("VitsModel", tmp_path)
    requests = ["a wet field", "dry", "wet"]
    lengths = set()
    for asked, found in zip(requests, results(llm, requests), strict=True):
        expected = by_transformers(model, **tokenizer(asked, return_tensors="pt")).waveform
        assert found.rate == 8000
        np.testing.assert_allclose(found.samples, expected, rtol=1e-5, atol=1e-5)
        lengths.add(found.samples.shape[1])
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("architecture", "request_", "why"),
    [
        ("OwlViTForObjectDetection", SQUARE, "needs text"),
        ("OwlViTForObjectDetection", {"image": SQUARE, "text": []}, "none of them empty"),
        ("OwlViTForObjectDetection", {"image": SQUARE, "text": ["a"], "boxes": [[1, 2, 3, 4]]}, "leave it out"),
        ("OwlViTForObjectDetection", {"text": ["a"]}, "has text, but no picture"),
        ("OwlViTForObjectDetection", {}, "has nothing, but no picture"),
        ("OwlViTForObjectDetection", {"image": SQUARE, "text": ["a " * 40]}, "tokens, the model takes 16"),
        ("SamModel", {"image": SQUARE}, "needs input_points or input_boxes"),
        ("SamModel", {"image": SQUARE, "input_points": [[1, 2, 3]]}, "must be finite numbers"),
        ("SamModel", {"image": SQUARE, "input_boxes": [[1, 2, 3, float("nan")]]}, "must be finite numbers"),
        ("BertForMultipleChoice", "a field", "choices"),
    ],
)
def test_what_is_missing_is_said(architecture, request_, why, tmp_path_factory):
    """Before it reaches the engine."""
    llm = _engines.get(architecture) or started(architecture, tmp_path_factory.mktemp(architecture))[0]
    _engines[architecture] = llm
    (refused,) = llm.generate([request_], use_tqdm=False)
    with pytest.raises(InputError, match=why):
        _ = refused.outputs


_engines = {}
