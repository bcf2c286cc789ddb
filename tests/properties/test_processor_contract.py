"""Our own processors keep what they promise to the engine, by the check that we ship to other authors."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="processors are given torch tensors")

from vllm_mmout import OutputParams  # noqa: E402 - needs torch
from vllm_mmout.processors.classification import ClassificationProcessor  # noqa: E402
from vllm_mmout.processors.detection import DetectionProcessor  # noqa: E402
from vllm_mmout.processors.embedding import EmbeddingProcessor  # noqa: E402
from vllm_mmout.processors.embedding_grid import EmbeddingGridProcessor  # noqa: E402
from vllm_mmout.processors.image import ImageProcessor  # noqa: E402
from vllm_mmout.processors.regression import RegressionProcessor  # noqa: E402
from vllm_mmout.processors.segmentation import SegmentationProcessor  # noqa: E402
from vllm_mmout.processors.tensor import TensorProcessor  # noqa: E402
from vllm_mmout.processors.video import VideoProcessor  # noqa: E402
from vllm_mmout.registry.processor_names import BUILT_IN  # noqa: E402
from vllm_mmout.testing import (  # noqa: E402
    FLOATING,
    PROMISES,
    Case,
    check_output_processor,
    difference,
    model_outputs,
    tensors,
)

pytestmark = pytest.mark.engine

INTEGERS = ("uint8", "int16", "int64", "bool")
LENGTHS = {"h": (1, 5), "w": (1, 19), "dim": (1, 40)}
"""Long enough for torch's vectorised loops and what is left over after them."""


def fewer():
    """A third of the profile's examples: there are many processors, and each example is run some fifty times."""
    return settings(max_examples=max(settings().max_examples // 3, 5))


def maps(channels, dtype=FLOATING, **options):
    return tensors(("n", channels, "h", "w"), dtype=dtype, lengths=LENGTHS, **options)


def queries(classes):
    """What DETR and its kin emit."""
    return model_outputs({"logits": ("n", "q", classes), "pred_boxes": ("n", "q", 4)}, lengths={"q": (1, 9)})


def boxes(labels="int64", **options):
    """What detectors emit that score their boxes themselves."""
    return model_outputs(
        {"scores": ("n", "q"), "labels": ("n", "q"), "boxes": ("n", "q", 4)},
        {"labels": labels},
        lengths={"q": (0, 9)},
        elements={"scores": st.floats(0, 1, width=16), "boxes": st.integers(-2, 40)},
        **options,
    )


SEVERAL = model_outputs({"a": ("n", "k"), "b": ("n",), "c": ("n", "k", 2)}, {"b": INTEGERS})
VECTORS = tensors(("n", "dim"), lengths=LENGTHS)
TOKENS = tensors(("n", "tokens", "dim"), lengths=LENGTHS)
OPTIONS = {
    "tensor": [({}, tensors(("n", "h", "w"), dtype=(*FLOATING, "float64", *INTEGERS))), ({}, SEVERAL)],
    "image": [
        ({}, maps(3)),
        ({}, maps(1, dtype="uint8")),
        ({"value_range": [-1.0, 30.0]}, maps(4)),
    ],
    "video": [
        ({}, tensors(("n", "frames", 3, "h", "w"), lengths={"frames": (1, 3), **LENGTHS})),
        ({"value_range": [-1.0, 30.0]}, tensors(("n", 2, 3, "h", "w"), dtype="uint8", lengths=LENGTHS)),
    ],
    "segmentation": [
        ({}, maps(2)),
        ({"class_names": ["a", "b", "c"], "palette": ["#000000", [1, 2, 3], "#ffffff"]}, maps(3)),
        ({"class_names": [f"class {number}" for number in range(300)]}, tensors(("n", 300, 1, (1, 3)))),
    ],
    "regression": [
        ({}, maps("bands")),
        ({}, tensors(("n", "h", "w"), lengths=LENGTHS)),
        ({"scale": [0.5, -3.0], "offset": 1.5, "clip": [-4, None], "dtype": "float16"}, maps(2)),
        ({"units": "m", "band_names": ["depth"], "dtype": "uint16"}, maps(1)),
        ({"clip": [-9, 9], "dtype": "int8"}, maps(2)),
    ],
    "classification": [
        ({}, VECTORS),
        ({"multi_label": True, "threshold": 0.25, "top_k": 3}, VECTORS),
        ({"class_names": ["land", "water"]}, tensors(("n", 2))),
    ],
    "detection": [
        ({"threshold": 0.0}, queries(3)),
        ({"no_object": False, "box_format": "xywh", "max_detections": 3}, queries(2)),
        ({"threshold": 0.1, "iou_threshold": 0.3}, boxes()),
        ({"normalized": True, "class_names": ["ship", "plane"]}, boxes("uint8")),
    ],
    "embedding": [
        ({}, VECTORS),
        ({"normalize": True, "dtype": "float16"}, VECTORS),
        ({"pool": "mean"}, TOKENS),
        ({"pool": "cls", "normalize": True}, TOKENS),
        ({"pool": "max"}, maps("channels")),
        ({"pool": "mean", "normalize": True}, maps("channels")),
    ],
    "embedding_grid": [
        ({"patch_size": 2, "dtype": "float32"}, maps("channels")),
        ({"patch_size": 2, "normalize": True, "dtype": "int8"}, maps("channels")),
    ],
}
"""Built-in processor -> options of its constructor, each with what a model may emit for it."""

PROCESSORS = {
    processor.name: processor
    for processor in (
        ClassificationProcessor,
        DetectionProcessor,
        EmbeddingGridProcessor,
        EmbeddingProcessor,
        ImageProcessor,
        RegressionProcessor,
        SegmentationProcessor,
        TensorProcessor,
        VideoProcessor,
    )
}
CASES = [
    pytest.param(PROCESSORS[name], options, outputs, id=f"{name}-{place}")
    for name, rows in OPTIONS.items()
    for place, (options, outputs) in enumerate(rows)
]


def does_not_mind_how_the_input_is_read(case):
    """Options about the input (bands, nodata, overlap) change nothing of what a built-in processor returns."""
    plain = Case(case.make, case.outputs, OutputParams(output=case.params.output))
    case.compare(plain.alone, case.alone, "options about the input change the output")


@pytest.mark.parametrize(("processor", "options", "outputs"), CASES)
def test_built_in_processors_keep_their_promises(processor, options, outputs):
    """Each built-in processor keeps all promises, and one of our own, with all its outputs, whatever a model emits."""
    promises = (*PROMISES, does_not_mind_how_the_input_is_read)
    check_output_processor(lambda: processor(**options), outputs, promises=promises, settings=fewer())


def test_every_built_in_processor_is_checked():
    """No processor is built in that the test above does not check; those of tokens, a wing's, reduce nothing."""
    assert set(OPTIONS) == set(BUILT_IN)
    for name, path in BUILT_IN.items():
        module, _, attribute = path.partition(":")
        assert getattr(importlib.import_module(module), attribute) is PROCESSORS[name]


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (
            ClassificationProcessor,
            {"id2label": {"0": "land", 1: "water"}, "problem_type": "multi_label_classification"},
        ),
        (DetectionProcessor, {"id2label": {"0": "ship"}}),
    ],
)
def test_processors_made_from_a_config_keep_their_promises(make, config):
    """What config.json says makes no difference to what is promised."""
    outputs = VECTORS if make is ClassificationProcessor else queries(2)
    check_output_processor(lambda: make.from_config(config, {}), outputs, settings=fewer())


@given(st.sampled_from(["float32", "uint8"]), st.data())
def test_tensors_come_back_as_the_model_gave_them(dtype, data):
    """The tensor processor returns the numbers of the model, by plain PyTorch's account of them."""
    output = data.draw(tensors(("n", "h", "w"), dtype=dtype))
    for request, returned in enumerate(Case(TensorProcessor, output).alone):
        assert difference(returned.array, output[request].numpy()) is None
