# ruff: noqa: INP001 - scripts are no package
"""What a user of transformers would call for the same request, and where a result differs from that."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLOSE = 1e-5
"""Of the largest value, where that is above 1, else as it is."""
THRESHOLD = 0.0
"""Of scores: all that a model of random weights finds is compared."""
_FEW = 0.05
"""Percent of the pixels."""
SIZES = ((240, 320), (256, 256))
"""Height and width of the pictures."""


def inputs_of(architecture: str, head: Any, folder: str) -> list[Any]:
    """Two inputs, of different sizes where they have one."""
    from PIL import Image

    random = np.random.default_rng(1)
    if head.takes == "image":
        pictures = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
        beside = {name: said for name, said in _beside(head, pictures).items() if name in (head.needs[:1] or ())}
        if "text_pair" in head.prompt:
            beside |= {"text_pair": ["wet", "field"], "boxes": [[10, 10, 60, 80], [70, 10, 90, 80]]}
        return [{"image": picture, **beside} if beside else picture for picture in pictures]
    if head.takes == "audio":
        return [random.normal(0, 0.1, count).astype(np.float32) for count in (16_000, 20_000)]
    if head.takes == "video":
        frames = json.loads(Path(folder, "config.json").read_text()).get("num_frames") or 16
        return [list(random.integers(0, 256, (frames, *size, 3), np.uint8)) for size in SIZES]
    if head.takes == "text":
        if "choices" in head.needs:
            return [{"text": "a field", "choices": ["wet", "dry"]}, {"text": "dry", "choices": ["wet", "a", "of"]}]
        return ["a wet field of dry", "a field"]
    return [_series(architecture, folder, random) for _ in range(2)]


def expected_of(head: Any, model: Any, folder: str, given: Any) -> Case:
    """One request by transformers itself."""
    import torch

    features, processor = _features(head, folder, given)
    method = model.generate if head.drawn else model.forward
    known = inspect.signature(method).parameters
    torch.manual_seed(0)  # from which the product draws too
    with torch.inference_mode():
        raw = (method if head.drawn else model)(**{name: value for name, value in features.items() if name in known})
    picture = given["image"] if isinstance(given, dict) and "image" in given else given
    size = picture.size[::-1] if hasattr(picture, "getbands") else None
    return Case(head, raw, features, processor, given, size)


def difference(case: Case, found: Any) -> str | None:
    """What differs from transformers; "" for nothing, None where nothing can be compared."""
    return _COMPARISONS[case.head.processor](case, found)


@dataclass(frozen=True)
class Case:
    """One request: the model's output and all that it is made a result with."""

    head: Any
    raw: Any
    features: Any
    processor: Any
    given: Any
    size: Any

    @property
    def images(self) -> Any:
        """The image processor."""
        return getattr(self.processor, "image_processor", self.processor)

    def post_process(self, name: str, **options: Any) -> Any:
        """What ``post_process_NAME`` gives for the one request; None where the processor has none."""
        method = getattr(self.processor, f"post_process_{name}", None) or getattr(
            self.images, f"post_process_{name}", None
        )
        if method is None:
            return None
        takes = inspect.signature(method).parameters
        options = {"target_sizes": [self.size], "source_sizes": [self.size], **options}
        return method(self.raw, **{key: value for key, value in options.items() if key in takes})[0]


def _beside(head: Any, pictures: list[Any]) -> dict[str, Any]:
    return {
        "text": ["a field", "wet"] if head.alone else "a wet field",
        "task_inputs": "panoptic",
        "boxes": [[10, 10, 60, 80]],
        "input_points": [[40, 50]],
        "other_image": pictures[1],
        "trimaps": pictures[0].convert("L"),
    }


def _features(head: Any, folder: str, given: Any) -> tuple[Any, Any]:  # noqa: PLR0911 - each kind in its own way
    """The tensors that a user of transformers would give the model, and the processor."""
    import torch
    import transformers

    if head.takes == "image":
        auto = transformers.AutoProcessor if head.prompt else transformers.AutoImageProcessor
        processor = auto.from_pretrained(folder)
        return _of_picture(head, processor, given), processor
    if head.takes == "video":
        if Path(folder, "video_preprocessor_config.json").exists():
            processor = transformers.AutoVideoProcessor.from_pretrained(folder)
            return processor(np.stack(given), return_tensors="pt"), processor
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        return processor(given, return_tensors="pt"), processor
    if head.takes == "audio":
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        return extractor(given, sampling_rate=extractor.sampling_rate, return_tensors="pt"), extractor
    if head.takes == "text":
        words = transformers.AutoTokenizer.from_pretrained(folder)
        if isinstance(given, dict):
            choices = given["choices"]
            features = words([given["text"]] * len(choices), choices, padding=True, return_tensors="pt")
            return {name: value[None] for name, value in features.items()}, words
        return words(given, return_tensors="pt"), words
    return {name: torch.as_tensor(value)[None] for name, value in given.items()}, None


def _of_picture(head: Any, processor: Any, given: Any) -> Any:  # noqa: PLR0911 - each processor is called otherwise
    if not isinstance(given, dict):
        return processor(given, return_tensors="pt")
    picture, options = given["image"], {name: value for name, value in given.items() if name != "image"}
    if "other_image" in options:
        return processor([[picture, options["other_image"]]], return_tensors="pt")
    if head.processor == "text-segmentation":
        texts = options["text"]
        return processor(images=[picture] * len(texts), text=texts, padding="max_length", return_tensors="pt")
    if head.processor == "zero-shot-object-detection":
        return processor(images=picture, text=[options["text"]], return_tensors="pt")
    if head.processor == "zero-shot-classification":
        return processor(images=picture, text=options["text"], padding="longest", return_tensors="pt")
    if "task_inputs" in options:
        return processor(picture, [options["task_inputs"]], return_tensors="pt")
    if "input_points" in options:
        return processor(images=picture, input_points=[[options["input_points"]]], return_tensors="pt")
    if head.processor == "pose-estimation":
        return processor(picture, boxes=[options["boxes"]], return_tensors="pt")
    return processor(images=picture, **options, return_tensors="pt")


def _series(architecture: str, folder: str, random: Any) -> dict[str, Any]:
    """What a model of series takes, by its keywords."""
    from vllm_mmout.wings.transformers.loading import keywords_of_network

    config = json.loads(Path(folder, "config.json").read_text())
    length = config.get("context_length") or 32
    names = keywords_of_network(architecture)
    if "future_time_features" in names:
        return _forecast(config, random)
    if "timesfm" in config["model_type"]:
        return {names[0]: random.normal(0, 1, length).astype(np.float32)}
    channels = config.get("num_input_channels") or config.get("input_size") or 1
    return {names[0]: random.normal(0, 1, (length, channels)).astype(np.float32)}


def _forecast(config: Mapping[str, Any], random: Any) -> dict[str, Any]:
    """What a model that draws forecasts takes: the past, and the features of past and future times."""
    ahead = config["prediction_length"]
    past = (config.get("context_length") or ahead) + max(config["lags_sequence"])
    features = config["num_time_features"]
    return {
        "past_values": random.normal(3, 1, past).astype(np.float32),
        "past_time_features": random.normal(0, 1, (past, features)).astype(np.float32),
        "past_observed_mask": np.ones(past, np.float32),
        "future_time_features": random.normal(0, 1, (ahead, features)).astype(np.float32),
    }


def _classes(case: Case, found: Any) -> str:
    raw = case.raw
    logits = raw["logits_per_image"] if "logits_per_image" in raw else raw["logits"]
    sigmoid = "siglip" in type(raw).__name__.lower()
    expected = (logits.sigmoid() if sigmoid else logits.softmax(-1)).flatten().numpy()
    scores = np.zeros(len(expected))
    for one in found.classes:
        scores[one.id] = one.score
    kept = np.array([one.id for one in found.classes])
    if expected[kept].min() + CLOSE < np.delete(expected, kept).max(initial=0):
        return "another class is better"
    return _far(scores[kept], expected[kept])


def _of_tensors(case: Case, found: Any) -> str:
    said = [""]
    for name, array in found.arrays.items():
        key, _, number = name.partition(".")
        value = case.raw[key] if key in case.raw else next(iter(case.raw.values()))
        value = value[int(number)] if number else value
        said.append(_far(array, (value if case.head.alone else value[0]).numpy()))
    return next(filter(None, said), "")


def _semantic(case: Case, found: Any) -> str:
    expected = case.post_process("semantic_segmentation")
    if expected is None:
        expected = _scaled(case.raw["logits"], case.size)[0].argmax(0)
    return _unlike(found.array[0], expected.numpy())


def _segments(case: Case, found: Any) -> str:
    tasks = (case.post_process(f"{task}_segmentation", threshold=THRESHOLD) for task in ("panoptic", "instance"))
    expected = next(one for one in tasks if one is not None)
    told = json.loads(found.metadata["segments"])
    rows = expected["segments_info"]
    if [one["label_id"] for one in told] != [one["label_id"] for one in rows]:
        return f"{len(told)} segments, not {len(rows)}, or others"
    ids = np.zeros(case.size, np.int64)
    for number, one in enumerate(rows, start=1):
        ids[expected["segmentation"].numpy() == one["id"]] = number
    scores = [one["score"] for one in told], [one["score"] for one in rows]
    return _unlike(found.array[0], ids) or _far(*map(np.array, scores))


def _objects(case: Case, found: Any) -> str:
    texts = case.given["text"] if isinstance(case.given, dict) else None
    import torch

    options: dict[str, Any] = {"threshold": THRESHOLD, "target_sizes": torch.tensor([case.size])}
    if texts is None:
        expected = case.post_process("object_detection", **options)
    else:
        options |= {"text_labels": [texts], "input_ids": case.features.get("input_ids")}
        expected = case.post_process("grounded_object_detection", **options, text_threshold=0.0)
    height, width = case.size
    boxes = expected["boxes"].numpy().reshape(-1, 4).clip(0, [width, height, width, height])
    there = (boxes[:, 2:] > boxes[:, :2]).all(axis=1) | (texts is not None)  # by texts also boxes without an area
    scores = expected["scores"].numpy()[there]
    if len(scores) != len(found.detections):
        return f"{len(found.detections)} objects, not {len(scores)}"
    labels = expected["labels" if texts is None else "text_labels"]
    labels = [label for label, inside in zip(labels, there, strict=True) if inside]
    given = [one.id if texts is None else one.label for one in found.detections]
    if given != [int(label) for label in labels] if texts is None else given != labels:
        return "other labels, or in another order"
    return _far(np.array([one.score for one in found.detections]), scores) or _far(
        np.array([one.box for one in found.detections]).reshape(-1, 4), boxes[there]
    )


def _planes(name: str) -> Callable[[Case, Any], str | None]:
    """Of heads whose processor makes planes: ``predicted_depth``, ``normals``, ``alphas``."""
    task = {"predicted_depth": "depth_estimation", "normals": "normal_estimation", "alphas": "image_matting"}[name]

    def compare(case: Case, found: Any) -> str | None:
        expected = case.post_process(task)
        if expected is not None:
            planes = expected["alpha" if name == "alphas" else name]
            return _far(found.array, planes.numpy().reshape(found.array.shape))
        if name == "alphas":
            return _far(found.array, case.raw[name][0, :, : case.size[0], : case.size[1]].numpy())
        if name == "predicted_depth":
            plane = _scaled(case.raw[name].unsqueeze(1), case.size, "bicubic")
            return _far(found.array, plane[0].numpy())
        return None

    return compare


def _picture(case: Case, found: Any) -> str:
    rows, cols = found.array.shape[1:]
    expected = (case.raw["reconstruction"][0].clamp(0, 1) * 255).round()[:, :rows, :cols].numpy()
    off = np.abs(found.array.astype(int) - expected.astype(int)).max()
    return "" if off <= 1 else f"{off} grey levels"


def _of_texts(case: Case, found: Any) -> str:
    logits = case.raw["logits"].reshape(1, len(case.given["text"]), *case.raw["logits"].shape[-2:])
    return _far(found.array, _scaled(logits, case.size)[0].sigmoid().numpy())


def _masks(case: Case, found: Any) -> str:
    sizes = [case.features[n] for n in ("original_sizes", "reshaped_input_sizes") if n in case.features]
    (masks,) = case.images.post_process_masks(case.raw["pred_masks"], *sizes)
    best = case.raw["iou_scores"][0].argmax(-1).tolist()
    expected = np.stack([masks[number, which].numpy() for number, which in enumerate(best)])
    return _unlike(found.array > 0, expected)


def _points(case: Case, found: Any) -> str:
    expected = case.images.post_process_keypoint_detection(case.raw, [case.size])[0]
    points = np.array([(one.x, one.y) for one in found.keypoints])
    return _far(points.reshape(-1, 2), expected["keypoints"].numpy().astype(float))


def _joints(case: Case, found: Any) -> str:
    options = {"boxes": [np.array(case.given["boxes"], float)], "target_sizes": None}  # the boxes' own
    persons = case.post_process("pose_estimation", **options)
    kept = [person["scores"].numpy() >= 0 for person in persons]
    expected = np.concatenate([np.asarray(one["keypoints"])[keep] for one, keep in zip(persons, kept, strict=True)])
    return _far(np.array([(one.x, one.y) for one in found.keypoints]), expected)


def _matches(case: Case, found: Any) -> str:
    sizes = [(case.size, case.given["other_image"].size[::-1])]
    expected = case.images.post_process_keypoint_matching(case.raw, sizes, threshold=THRESHOLD)[0]
    pairs = ((found.arrays[name], expected[name].numpy()) for name in found.arrays)
    return next(filter(None, (_far(*pair) for pair in pairs)), "")


def _sound(case: Case, found: Any) -> str:
    expected = case.raw["waveform"].reshape(1, -1).numpy()
    return _far(found.samples, expected[:, : found.samples.shape[1]])


_COMPARISONS: dict[str, Callable[[Case, Any], str | None]] = {
    "classification": _classes,
    "zero-shot-classification": _classes,
    "tensor": _of_tensors,
    "semantic-segmentation": _semantic,
    "image-segmentation": _segments,
    "object-detection": _objects,
    "zero-shot-object-detection": _objects,
    "depth-estimation": _planes("predicted_depth"),
    "normal-estimation": _planes("normals"),
    "image-matting": _planes("alphas"),
    "image-to-image": _picture,
    "text-segmentation": _of_texts,
    "mask-generation": _masks,
    "keypoint-detection": _points,
    "pose-estimation": _joints,
    "keypoint-matching": _matches,
    "text-to-waveform": _sound,
}
"""Output processor -> how its results are held to transformers'."""


def _scaled(planes: Any, size: Any, mode: str = "bilinear") -> Any:
    from torch.nn.functional import interpolate

    return interpolate(planes, tuple(size), mode=mode, align_corners=False)


def _unlike(array: Any, expected: Any) -> str:
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    off = float((array != expected).mean())
    return f"{off:.2%} of the pixels" if off else ""


def ties_of(told: list[str]) -> str:
    """What differs where it is a handful of pixels, and in a batch alone, in which sums are rounded otherwise."""
    *together, alone = told
    said = [one for one in together if one]
    few = all(one.endswith("% of the pixels") and float(one.partition("%")[0]) <= _FEW for one in said)
    return said[0] if said and few and not alone else ""


def _far(array: Any, expected: Any) -> str:
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    if not array.size:
        return ""
    most = float(np.abs(array - expected).max()) / max(float(np.abs(expected).max()), 1.0)
    return "" if most <= CLOSE else f"values by {most:.2g} of the largest"
