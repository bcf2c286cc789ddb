# ruff: noqa: INP001 - the scripts are not a package
"""Comparison of results with transformers, called as a user of transformers would call it for the same request."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLOSE = 1e-5
"""Tolerance: relative to the largest value if that is above 1, else absolute."""
THRESHOLD = 0.0
"""Threshold of scores. With 0, everything that a model with random weights finds is compared."""
_FEW = 0.05
"""Largest percentage of the pixels that may differ because of ties."""
SIZES = ((240, 320), (256, 256))
"""Height and width of the pictures in pixels."""


def inputs_of(architecture: str, head: Any, folder: str) -> list[Any]:
    """Return two inputs, of different sizes if the kind of input has a size."""
    from PIL import Image

    random = np.random.default_rng(1)
    if head.takes == "image":
        pictures = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
        options = {name: value for name, value in _beside(head, pictures).items() if name in (head.needs[:1] or ())}
        if "text_pair" in head.prompt:
            options |= {"text_pair": ["wet", "field"], "boxes": [[10, 10, 60, 80], [70, 10, 90, 80]]}
        return [{"image": picture, **options} if options else picture for picture in pictures]
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


def expected_of(head: Any, model: Any, folder: str, request: Any) -> Case:
    """Run one request with transformers itself, and return the case."""
    import torch

    features, processor = _features(head, folder, request)
    method = model.generate if head.drawn else model.forward
    names = inspect.signature(method).parameters
    torch.manual_seed(0)  # the product uses the same seed
    with torch.inference_mode():
        raw = (method if head.drawn else model)(**{name: value for name, value in features.items() if name in names})
    picture = request["image"] if isinstance(request, dict) and "image" in request else request
    size = picture.size[::-1] if hasattr(picture, "getbands") else None
    return Case(head, raw, features, processor, request, size)


def difference(case: Case, result: Any) -> str | None:
    """Return the difference of a result from transformers, "" for none, or None if nothing can be compared."""
    return _COMPARISONS[case.head.processor](case, result)


@dataclass(frozen=True)
class Case:
    """A request with the output of transformers' model and everything needed to make a result of it."""

    head: Any
    raw: Any
    features: Any
    processor: Any
    given: Any
    size: Any

    @property
    def images(self) -> Any:
        """The image processor, which is the processor itself or a part of it."""
        return getattr(self.processor, "image_processor", self.processor)

    def post_process(self, name: str, **options: Any) -> Any:
        """Return the result of ``post_process_NAME`` for the request, or None if the processor has no such method."""
        method = getattr(self.processor, f"post_process_{name}", None) or getattr(
            self.images, f"post_process_{name}", None
        )
        if method is None:
            return None
        parameters = inspect.signature(method).parameters
        options = {"target_sizes": [self.size], "source_sizes": [self.size], **options}
        return method(self.raw, **{key: value for key, value in options.items() if key in parameters})[0]


def _beside(head: Any, pictures: list[Any]) -> dict[str, Any]:
    return {
        "text": ["a field", "wet"] if head.alone else "a wet field",
        "task_inputs": "panoptic",
        "boxes": [[10, 10, 60, 80]],
        "input_points": [[40, 50]],
        "other_image": pictures[1],
        "trimaps": pictures[0].convert("L"),
    }


def _features(head: Any, folder: str, request: Any) -> tuple[Any, Any]:  # noqa: PLR0911 - a return for each kind
    """Return the tensors that a user of transformers would pass to the model, and the processor."""
    import torch
    import transformers

    if head.takes == "image":
        auto = transformers.AutoProcessor if head.prompt else transformers.AutoImageProcessor
        processor = auto.from_pretrained(folder)
        return _of_picture(head, processor, request), processor
    if head.takes == "video":
        if Path(folder, "video_preprocessor_config.json").exists():
            processor = transformers.AutoVideoProcessor.from_pretrained(folder)
            return processor(np.stack(request), return_tensors="pt"), processor
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        return processor(request, return_tensors="pt"), processor
    if head.takes == "audio":
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        return extractor(request, sampling_rate=extractor.sampling_rate, return_tensors="pt"), extractor
    if head.takes == "text":
        words = transformers.AutoTokenizer.from_pretrained(folder)
        if isinstance(request, dict):
            choices = request["choices"]
            features = words([request["text"]] * len(choices), choices, padding=True, return_tensors="pt")
            return {name: value[None] for name, value in features.items()}, words
        return words(request, return_tensors="pt"), words
    return {name: torch.as_tensor(value)[None] for name, value in request.items()}, None


def _of_picture(head: Any, processor: Any, request: Any) -> Any:  # noqa: PLR0911 - a return for each call
    if not isinstance(request, dict):
        return processor(request, return_tensors="pt")
    picture, options = request["image"], {name: value for name, value in request.items() if name != "image"}
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
    """Return an input for a model of time series, by its keyword arguments."""
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
    """Return an input for a model that samples forecasts: past values, and features of past and future times."""
    horizon = config["prediction_length"]
    past = (config.get("context_length") or horizon) + max(config["lags_sequence"])
    features = config["num_time_features"]
    return {
        "past_values": random.normal(3, 1, past).astype(np.float32),
        "past_time_features": random.normal(0, 1, (past, features)).astype(np.float32),
        "past_observed_mask": np.ones(past, np.float32),
        "future_time_features": random.normal(0, 1, (horizon, features)).astype(np.float32),
    }


def _classes(case: Case, result: Any) -> str:
    raw = case.raw
    logits = raw["logits_per_image"] if "logits_per_image" in raw else raw["logits"]
    sigmoid = "siglip" in type(raw).__name__.lower()
    expected = (logits.sigmoid() if sigmoid else logits.softmax(-1)).flatten().numpy()
    scores = np.zeros(len(expected))
    for prediction in result.classes:
        scores[prediction.id] = prediction.score
    kept = np.array([prediction.id for prediction in result.classes])
    if expected[kept].min() + CLOSE < np.delete(expected, kept).max(initial=0):
        return "another class is better"
    return _far(scores[kept], expected[kept])


def _of_tensors(case: Case, result: Any) -> str:
    differences = [""]
    for name, array in result.arrays.items():
        key, _, number = name.partition(".")
        value = case.raw[key] if key in case.raw else next(iter(case.raw.values()))
        value = value[int(number)] if number else value
        differences.append(_far(array, (value if case.head.alone else value[0]).numpy()))
    return next(filter(None, differences), "")


def _semantic(case: Case, result: Any) -> str:
    expected = case.post_process("semantic_segmentation")
    if expected is None:
        expected = _scaled(case.raw["logits"], case.size)[0].argmax(0)
    return _unlike(result.array[0], expected.numpy())


def _segments(case: Case, result: Any) -> str:
    tasks = (case.post_process(f"{task}_segmentation", threshold=THRESHOLD) for task in ("panoptic", "instance"))
    expected = next(segmentation for segmentation in tasks if segmentation is not None)
    segments = json.loads(result.metadata["segments"])
    rows = expected["segments_info"]
    if [segment["label_id"] for segment in segments] != [segment["label_id"] for segment in rows]:
        return f"{len(segments)} segments, not {len(rows)}, or others"
    ids = np.zeros(case.size, np.int64)
    for number, segment in enumerate(rows, start=1):
        ids[expected["segmentation"].numpy() == segment["id"]] = number
    scores = [segment["score"] for segment in segments], [segment["score"] for segment in rows]
    return _unlike(result.array[0], ids) or _far(*map(np.array, scores))


def _objects(case: Case, result: Any) -> str:
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
    kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1) | (texts is not None)  # with texts, also boxes without an area
    scores = expected["scores"].numpy()[kept]
    if len(scores) != len(result.detections):
        return f"{len(result.detections)} objects, not {len(scores)}"
    labels = expected["labels" if texts is None else "text_labels"]
    labels = [label for label, inside in zip(labels, kept, strict=True) if inside]
    labels_of_result = [detection.id if texts is None else detection.label for detection in result.detections]
    if labels_of_result != [int(label) for label in labels] if texts is None else labels_of_result != labels:
        return "other labels, or in another order"
    return _far(np.array([detection.score for detection in result.detections]), scores) or _far(
        np.array([detection.box for detection in result.detections]).reshape(-1, 4), boxes[kept]
    )


def _planes(name: str) -> Callable[[Case, Any], str | None]:
    """Return a comparison for heads that output planes: ``predicted_depth``, ``normals`` or ``alphas``."""
    task = {"predicted_depth": "depth_estimation", "normals": "normal_estimation", "alphas": "image_matting"}[name]

    def compare(case: Case, result: Any) -> str | None:
        expected = case.post_process(task)
        if expected is not None:
            planes = expected["alpha" if name == "alphas" else name]
            return _far(result.array, planes.numpy().reshape(result.array.shape))
        if name == "alphas":
            return _far(result.array, case.raw[name][0, :, : case.size[0], : case.size[1]].numpy())
        if name == "predicted_depth":
            plane = _scaled(case.raw[name].unsqueeze(1), case.size, "bicubic")
            return _far(result.array, plane[0].numpy())
        return None

    return compare


def _picture(case: Case, result: Any) -> str:
    rows, cols = result.array.shape[1:]
    expected = (case.raw["reconstruction"][0].clamp(0, 1) * 255).round()[:, :rows, :cols].numpy()
    error = np.abs(result.array.astype(int) - expected.astype(int)).max()
    return "" if error <= 1 else f"{error} grey levels"


def _of_texts(case: Case, result: Any) -> str:
    logits = case.raw["logits"].reshape(1, len(case.given["text"]), *case.raw["logits"].shape[-2:])
    return _far(result.array, _scaled(logits, case.size)[0].sigmoid().numpy())


def _masks(case: Case, result: Any) -> str:
    sizes = [case.features[n] for n in ("original_sizes", "reshaped_input_sizes") if n in case.features]
    (masks,) = case.images.post_process_masks(case.raw["pred_masks"], *sizes)
    best = case.raw["iou_scores"][0].argmax(-1).tolist()
    expected = np.stack([masks[number, best_mask].numpy() for number, best_mask in enumerate(best)])
    return _unlike(result.array > 0, expected)


def _points(case: Case, result: Any) -> str:
    expected = case.images.post_process_keypoint_detection(case.raw, [case.size])[0]
    points = np.array([(point.x, point.y) for point in result.keypoints])
    return _far(points.reshape(-1, 2), expected["keypoints"].numpy().astype(float))


def _joints(case: Case, result: Any) -> str:
    options = {"boxes": [np.array(case.given["boxes"], float)], "target_sizes": None}  # the boxes are in pixels already
    persons = case.post_process("pose_estimation", **options)
    kept = [person["scores"].numpy() >= 0 for person in persons]
    expected = np.concatenate(
        [np.asarray(joints["keypoints"])[keep] for joints, keep in zip(persons, kept, strict=True)]
    )
    return _far(np.array([(joint.x, joint.y) for joint in result.keypoints]), expected)


def _matches(case: Case, result: Any) -> str:
    sizes = [(case.size, case.given["other_image"].size[::-1])]
    expected = case.images.post_process_keypoint_matching(case.raw, sizes, threshold=THRESHOLD)[0]
    pairs = ((result.arrays[name], expected[name].numpy()) for name in result.arrays)
    return next(filter(None, (_far(*pair) for pair in pairs)), "")


def _sound(case: Case, result: Any) -> str:
    expected = case.raw["waveform"].reshape(1, -1).numpy()
    return _far(result.samples, expected[:, : result.samples.shape[1]])


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
"""Comparison of results with transformers, by the name of the output processor."""


def _scaled(planes: Any, size: Any, mode: str = "bilinear") -> Any:
    from torch.nn.functional import interpolate

    return interpolate(planes, tuple(size), mode=mode, align_corners=False)


def _unlike(array: Any, expected: Any) -> str:
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    share = float((array != expected).mean())
    return f"{share:.2%} of the pixels" if share else ""


def ties_of(differences: list[str]) -> str:
    """Return the difference if it is a few pixels and only in a batch, where sums are rounded differently, else ""."""
    *together, alone = differences
    texts = [text for text in together if text]
    few = all(text.endswith("% of the pixels") and float(text.partition("%")[0]) <= _FEW for text in texts)
    return texts[0] if texts and few and not alone else ""


def _far(array: Any, expected: Any) -> str:
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    if not array.size:
        return ""
    most = float(np.abs(array - expected).max()) / max(float(np.abs(expected).max()), 1.0)
    return "" if most <= CLOSE else f"values by {most:.2g} of the largest"
