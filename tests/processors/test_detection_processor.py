from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import DetectionProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

PARAMS = OutputParams()
SIZE = (480, 640)


def queries(requests=1, count=50, classes=6, seed=0):
    """What a DETR emits."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "logits": 3 * torch.randn(requests, count, classes, generator=generator),
        "pred_boxes": torch.rand(requests, count, 4, generator=generator),
    }


def scored(boxes, scores=None, labels=None):
    """What a model with boxes in pixels emits for one request."""
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(1, -1, 4)
    count = boxes.shape[1]
    return {
        "scores": torch.linspace(0.9, 0.6, count)[None] if scores is None else torch.tensor([scores]),
        "labels": torch.tensor([[0] * count if labels is None else labels], dtype=torch.int64),
        "boxes": boxes,
    }


def result(processor, output, row=0):
    reduced = processor.reduce(output, PARAMS)
    return processor.decode({name: tensor[row] for name, tensor in reduced.items()}, PARAMS)


def boxes_of(found):
    return [one.box for one in found.detections]


def post_processed(image_processor, output, threshold):
    """What transformers makes of a model's output: boxes cut off at the picture, sorted by score."""
    outputs = SimpleNamespace(logits=output["logits"].float(), pred_boxes=output["pred_boxes"].float())
    oracle = image_processor.post_process_object_detection(
        None, outputs, threshold=threshold, target_sizes=[SIZE] * len(output["logits"])
    )
    for one in oracle:
        order = one["scores"].argsort(descending=True, stable=True)
        edges = torch.tensor([SIZE[1], SIZE[0]] * 2)
        yield [
            (int(one["labels"][at]), float(one["scores"][at]), one["boxes"][at].clamp(min=0).minimum(edges).tolist())
            for at in order
        ]


def as_rows(found):
    return [(one.id, pytest.approx(one.score, rel=1e-5), pytest.approx(one.box, abs=1e-3)) for one in found.detections]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.99])
def test_detr_is_read_as_by_transformers(threshold, dtype):
    """Labels, scores and boxes in pixels of the input are those of transformers' DetrImageProcessor."""
    module = pytest.importorskip("transformers.models.detr.image_processing_pil_detr")
    output = {name: tensor.to(dtype) for name, tensor in queries(requests=3).items()}
    processor = DetectionProcessor(threshold=threshold)
    for row, oracle in enumerate(post_processed(module.DetrImageProcessorPil, output, threshold)):
        found = result(processor, output, row).placed(Source(size=SIZE))
        assert as_rows(found) == oracle
        assert (found.units, found.size) == ("pixels", SIZE)
        assert oracle or threshold == 0.99


def test_detectors_without_a_class_for_nothing_are_read_as_by_transformers():
    """With no_object off the best 100 of all classes of all queries are those of DeformableDetrImageProcessor."""
    module = pytest.importorskip("transformers.models.deformable_detr.image_processing_pil_deformable_detr")
    output = queries(requests=2, count=60)
    processor = DetectionProcessor(no_object=False, threshold=0.7, max_detections=100)
    for row, oracle in enumerate(post_processed(module.DeformableDetrImageProcessorPil, output, 0.7)):
        assert len(oracle) > 40
        assert as_rows(result(processor, output, row).placed(Source(size=SIZE))) == oracle


@pytest.mark.parametrize(
    ("box_format", "box"), [("xyxy", [10, 20, 40, 80]), ("xywh", [10, 20, 30, 60]), ("cxcywh", [25, 50, 30, 60])]
)
def test_each_format_says_the_same_box(box_format, box):
    """Corners, corner and size, centre and size: the result has corners."""
    found = result(DetectionProcessor(box_format=box_format), scored([box]))
    assert boxes_of(found) == [(10, 20, 40, 80)]
    assert (found.units, found.size) == ("pixels", None)


def test_pixels_of_the_model_become_those_of_the_input():
    """Where the input was resized on the way, boxes are scaled back, and cut off at its edges."""
    output = scored([[0, 0, 224, 224], [56, 112, 300, 168], [-30, -30, 20, 20]])
    found = result(DetectionProcessor(), output).placed(Source(size=SIZE, seen=(224, 224)))
    assert boxes_of(found) == [
        (0, 0, 640, 480),
        (160, 240, 640, 360),
        (0, 0, pytest.approx(400 / 7), pytest.approx(300 / 7)),
    ]


def test_without_a_size_normalised_boxes_stay_so():
    """Where no size is known the result says so, and is cut off at the edges all the same."""
    found = result(DetectionProcessor(normalized=True), scored([[-0.5, 0.25, 0.5, 1.5]]))
    assert (boxes_of(found), found.units) == ([(0, 0.25, 0.5, 1)], "relative")
    assert found.placed(Source()).units == "relative"


def naive_suppression(boxes, labels, threshold):
    """Non-maximum suppression box by box, in Python's floats."""
    kept = []
    for number, box in enumerate(boxes):
        for other in kept:
            width = min(box[2], boxes[other][2]) - max(box[0], boxes[other][0])
            height = min(box[3], boxes[other][3]) - max(box[1], boxes[other][1])
            common = max(width, 0) * max(height, 0)
            areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, boxes[other])]
            overlap = common / (sum(areas) - common)
            if labels[number] == labels[other] and overlap > threshold:
                break
        else:
            kept.append(number)
    return kept


corner = st.integers(0, 12)
box = st.tuples(corner, corner, st.integers(1, 12), st.integers(1, 12)).map(
    lambda b: (float(b[0]), float(b[1]), float(b[0] + b[2]), float(b[1] + b[3]))
)


@settings(max_examples=200)
@given(st.lists(st.tuples(box, st.integers(0, 2)), max_size=25), st.sampled_from([0.0, 0.1, 0.3, 0.55, 0.9, 1.0]))
def test_suppression_keeps_what_a_plain_loop_keeps(found, threshold):
    """Of overlapping boxes of one class the best stays; those of other classes, and touching ones, all stay."""
    boxes, labels = [one[0] for one in found], [one[1] for one in found]
    scores = [0.99 - 0.01 * place for place in range(len(found))]
    left = result(DetectionProcessor(iou_threshold=threshold), scored(boxes, scores, labels))
    kept = naive_suppression(boxes, labels, threshold)
    assert [(one.box, one.id) for one in left.detections] == [(boxes[at], labels[at]) for at in kept]


def test_suppression_chooses_from_more_than_are_returned():
    """Many boxes of one object do not crowd out the others: max_detections counts what is left."""
    crowd = [[0, 0, 100, 100 - 0.1 * place] for place in range(8)]
    output = scored([*crowd, [200, 200, 300, 300], [400, 400, 420, 420]])
    found = result(DetectionProcessor(iou_threshold=0.5, max_detections=2), output)
    assert boxes_of(found) == [(0, 0, 100, 100), (200, 200, 300, 300)]


def test_a_fixed_number_travels():
    """Of all queries as many leave the device as are returned at most, few as there may be."""
    reduced = DetectionProcessor(max_detections=7).reduce(queries(requests=3), PARAMS)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in reduced.items()} == {
        "scores": (torch.float32, (3, 7)),
        "labels": (torch.int32, (3, 7)),
        "relative_boxes": (torch.float32, (3, 7, 4)),
        "above": (torch.int32, (3,)),
    }
    assert DetectionProcessor().reduce(queries(count=5), PARAMS)["scores"].shape == (1, 5)


def test_without_a_limit_all_are_returned_and_a_limit_counts_what_it_leaves_out():
    """Three hundred boxes come back by default; a limit keeps the best, and ``omitted`` counts the others."""
    scores = [0.5 + 0.001 * (at * 7 % 300 + 1) for at in range(300)]
    output = scored([[at, 0, at + 1, 1] for at in range(300)], scores)
    every = result(DetectionProcessor(), output)
    assert (len(every.detections), every.omitted) == (300, 0)
    best = result(DetectionProcessor(max_detections=40), output)
    assert (best.detections, best.omitted) == (every.detections[:40], 260)
    assert b"omitted" not in every.to_bytes("json")
    assert b'"omitted":260' in best.to_bytes("json").replace(b" ", b"")


def test_a_tile_gives_more_than_a_limit_of_its_scene():
    """The best of a scene may all lie in one tile, behind pieces that its neighbours have whole."""
    processor, params = DetectionProcessor(max_detections=5), PARAMS.of_part()
    output = scored([[at, 0, at + 1, 1] for at in range(1200)], [0.9] * 1200)
    reduced = processor.reduce(output, params)
    found = processor.decode({name: tensor[0] for name, tensor in reduced.items()}, params)
    assert (len(found.detections), found.omitted) == (1000, 200)


@pytest.mark.parametrize("options", [{}, {"no_object": False}], ids=str)
def test_a_batch_gives_what_its_members_give_alone(options):
    """Reducing several requests at once gives the same bits as reducing each, equal scores included."""
    batch = queries(requests=9, count=61, classes=7)
    batch["logits"][:5].round_()  # plenty of equal scores
    processor = DetectionProcessor(**options, max_detections=400)
    together = processor.reduce(batch, PARAMS)
    for row in range(9):
        alone = processor.reduce({name: tensor[row : row + 1] for name, tensor in batch.items()}, PARAMS)
        assert all(torch.equal(alone[name][0], together[name][row]) for name in together)


@pytest.mark.parametrize("output", [scored([]), scored([[0, 0, 9, 9]], [0.4]), queries(count=0)])
def test_nothing_found_is_a_result(output):
    """No candidates, or none above the threshold: an empty list."""
    assert result(DetectionProcessor(), output).placed(Source(size=SIZE)).detections == []


def test_room_that_is_not_used_is_no_detection():
    """Scores of 0 and minus infinity fill the room of models with fewer boxes, whatever their boxes hold."""
    output = scored([[0, 0, 9, 9], [math.nan] * 4, [math.inf] * 4], [0.8, 0.0, -math.inf], [1, 0, -1])
    assert [one.id for one in result(DetectionProcessor(threshold=0), output).detections] == [1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_an_error_of_their_request(bad):
    """NaN or infinity among many scores is never an empty or partial result."""
    output = scored([[0, 0, 9, 9]] * 300, [0.3] * 299 + [bad])
    with pytest.raises(DecodeError, match="the model's scores hold NaN or infinity"):
        result(DetectionProcessor(), output)


@pytest.mark.parametrize("options", [{}, {"no_object": False}], ids=str)
def test_logits_with_nan_are_an_error_of_their_request_alone(options):
    """One NaN among the logits of one query fails its request, and no other of the batch."""
    output = queries(requests=2, count=300)
    output["logits"][0, 299, 2] = math.nan
    processor = DetectionProcessor(**options)
    with pytest.raises(DecodeError, match="scores hold NaN"):
        result(processor, output)
    alone = {name: tensor[1:] for name, tensor in output.items()}
    assert result(processor, output, 1) == result(processor, alone)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_boxes_that_are_no_numbers_are_an_error_where_they_count(bad):
    """A box above the threshold must be finite; below it nobody asks."""
    processor = DetectionProcessor()
    output = scored([[0, 0, 9, 9], [0, bad, 9, 9]], [0.9, 0.8])
    with pytest.raises(DecodeError, match="a box with a score above the threshold holds NaN or infinity"):
        result(processor, output)
    output["scores"][0, 1] = 0.5
    assert boxes_of(result(processor, output)) == [(0, 0, 9, 9)]


def test_boxes_without_an_area_in_the_picture_are_left_out():
    """Turned over, flat, or wholly outside: no detection."""
    output = scored([[9, 0, 3, 9], [0, 4, 9, 4], [700, 0, 800, 9], [-9, -9, 0, 0], [1, 1, 2, 2]])
    found = result(DetectionProcessor(), output).placed(Source(size=SIZE))
    assert boxes_of(found) == [(1, 1, 2, 2)]


def test_labels_come_from_the_option_then_from_config():
    """class_names win over id2label; the class for nothing has no name among them."""
    output = queries(classes=3)
    config = {"id2label": {"0": "ship", "1": "tank"}}
    for options, names in (({}, ["ship", "tank"]), ({"class_names": ["a", "b"]}, ["a", "b"])):
        found = result(DetectionProcessor.from_config(config, options), output).detections
        assert {(one.id, one.label) for one in found} == set(enumerate(names))
    assert {one.label for one in result(DetectionProcessor(), output).detections} == {"0", "1"}
    with pytest.raises(ReduceError, match="class_names has 3 entries, the model emits 2 classes"):
        DetectionProcessor(class_names=["a", "b", "c"]).reduce(output, PARAMS)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(1, 2, 4), "got float32 [1, 2, 4]"),
        ({}, "got a dict of nothing"),
        ({"logits": torch.zeros(1, 2, 3), "boxes": torch.zeros(1, 2, 4)}, "got a dict of boxes, logits"),
        ({"logits": torch.zeros(1, 2, 3), "pred_boxes": torch.zeros(1, 3, 4)}, "pred_boxes float32 [1, 3, 4]"),
        ({"logits": torch.zeros(1, 2, 1), "pred_boxes": torch.zeros(1, 2, 4)}, "logits float32 [1, 2, 1]"),
        ({**scored([[0, 0, 1, 1]]), "labels": torch.zeros(1, 1)}, "labels float32 [1, 1]"),
        ({**scored([[0, 0, 1, 1]]), "boxes": torch.zeros(1, 1, 5)}, "boxes float32 [1, 1, 5]"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what detection takes, and what was given."""
    with pytest.raises(ReduceError, match=r"detection output must be a dict of .*\"pred_boxes\"") as caught:
        DetectionProcessor().reduce(output, PARAMS)
    assert says in str(caught.value)


def test_further_entries_are_passed_over():
    """What a model returns beside its boxes neither travels nor disturbs."""
    output = queries()
    more = {**output, "last_hidden_state": torch.zeros(1, 3)}
    assert result(DetectionProcessor(), more) == result(DetectionProcessor(), output)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"box_format": "yxyx"}, "box_format must be one of xyxy, cxcywh, xywh, got 'yxyx'"),
        ({"normalized": 1}, "normalized must be true or false"),
        ({"no_object": "yes"}, "no_object must be true or false"),
        ({"threshold": -0.1}, "threshold must be a number from 0 to 1"),
        ({"max_detections": 0}, "max_detections must be an integer of 1 or more"),
        ({"iou_threshold": 2}, "iou_threshold must be a number from 0 to 1"),
        ({"class_names": []}, "class_names must be a list of names"),
    ],
)
def test_malformed_options_are_refused(options, says):
    """The constructor says which option is wrong, before any request."""
    with pytest.raises(OptionError, match=says):
        DetectionProcessor(**options)


@pytest.mark.parametrize("raw", [torch.zeros(4), {"scores": torch.zeros(4), "labels": torch.zeros(4)}])
def test_decode_refuses_what_reduce_does_not_return(raw):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match="must override decode"):
        DetectionProcessor().decode(raw, PARAMS)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["xyxy", "xywh", "cxcywh"]), st.booleans())
def test_every_box_lies_within_the_input(seed, box_format, normalized):
    """Whatever a model emits, boxes of a placed result have an area and lie in the picture."""
    output = queries(seed=seed)
    output["pred_boxes"] = (output["pred_boxes"] * 3 - 1) * (1 if normalized else 500)
    processor = DetectionProcessor(box_format=box_format, normalized=normalized, threshold=0)
    boxes = np.array(boxes_of(result(processor, output).placed(Source(size=SIZE)))).reshape(-1, 4)
    assert (boxes >= 0).all()
    assert (boxes <= [SIZE[1], SIZE[0]] * 2).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()
