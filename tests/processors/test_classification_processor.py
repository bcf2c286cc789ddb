from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import ClassificationProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

PARAMS = OutputParams()


def logits(requests=1, classes=7, seed=0):
    return 3 * torch.randn(requests, classes, generator=torch.Generator().manual_seed(seed))


def of_row(processor, reduced, row=0):
    """What one request of a batch gets."""
    return processor.decode({name: tensor[row] for name, tensor in reduced.items()}, PARAMS)


def result(processor, output, row=0):
    return of_row(processor, processor.reduce(output, PARAMS), row)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_best_classes_are_those_of_torch(dtype):
    """Scores and ids are torch's softmax and topk, labels the names, the best first."""
    output = logits(requests=2, classes=9).to(dtype)
    names = [f"class {number}" for number in range(9)]
    oracle = output.float().softmax(dim=1).topk(5, dim=1)
    for row in range(2):
        found = result(ClassificationProcessor(class_names=names), output, row)
        assert [one.score for one in found.classes] == pytest.approx(oracle.values[row].tolist(), rel=1e-6)
        assert [one.id for one in found.classes] == oracle.indices[row].tolist()
        assert [one.label for one in found.classes] == [names[number] for number in oracle.indices[row]]
        assert (found.label, found.score) == (found.classes[0].label, found.classes[0].score)


@pytest.mark.parametrize(("classes", "problem"), [(1, None), (4, None), (4, "multi_label_classification")])
def test_scores_are_those_of_the_pipelines_of_transformers(classes, problem):
    """Softmax or sigmoid is chosen by config.json and the number of classes as transformers' pipeline does."""
    transformers = pytest.importorskip("transformers")
    pipeline = pytest.importorskip("transformers.pipelines.text_classification").TextClassificationPipeline
    config = transformers.PretrainedConfig(num_labels=classes, problem_type=problem)
    output = logits(classes=classes)

    class Stand:
        model = type("Model", (), {"config": config, "generation_config": None})()
        function_to_apply = None

    oracle = pipeline.postprocess(Stand(), {"logits": output}, top_k=None, _legacy=False)
    options = {"top_k": 9, "threshold": 0.0}
    found = result(ClassificationProcessor.from_config(config.to_dict(), options), output)
    assert [one.label for one in found.classes] == [one["label"] for one in oracle]
    assert [one.score for one in found.classes] == pytest.approx([one["score"] for one in oracle], rel=1e-6)


@given(st.lists(st.sampled_from([-2.0, 0.0, 1.5, -math.inf]), min_size=1, max_size=12), st.integers(1, 14))
def test_of_equal_scores_the_lower_id_comes_first(row, top_k):
    """Results are sorted by score, then id, and hold as many classes as there are, top_k at most."""
    if all(value == -math.inf for value in row):
        row[0] = 0.0
    found = result(ClassificationProcessor(top_k=top_k), torch.tensor([row])).classes
    assert len(found) == min(top_k, len(row))
    ranks = sorted(range(len(row)), key=lambda number: (-row[number], number))
    assert [one.id for one in found] == ranks[:top_k]


def test_several_labels_hold_at_once():
    """With multi_label each class has its own sigmoid, and those from the threshold on are returned."""
    output = torch.tensor([[2.0, -1.0, 0.0, 3.0]])
    found = result(ClassificationProcessor(multi_label=True), output)
    assert [(one.id, one.score) for one in found.classes] == [
        (number, pytest.approx(1 / (1 + math.exp(-output[0, number])))) for number in (3, 0, 2)
    ]
    assert [one.id for one in result(ClassificationProcessor(multi_label=True, threshold=0.9), output).classes] == [3]


def test_where_no_class_reaches_the_threshold_there_is_none():
    """A result may be of no class: then it has neither label nor score."""
    found = result(ClassificationProcessor(multi_label=True), torch.full((1, 3), -4.0))
    assert (found.classes, found.label, found.score) == ([], None, None)


def test_only_the_best_travel():
    """Of a thousand logits, five numbers and five scores leave the device."""
    reduced = ClassificationProcessor().reduce(logits(requests=3, classes=1000), PARAMS)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in reduced.items()} == {
        "scores": (torch.float32, (3, 5)),
        "ids": (torch.int32, (3, 5)),
    }
    assert all(tensor.is_contiguous() for tensor in reduced.values())


@pytest.mark.parametrize("options", [{}, {"multi_label": True}], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_an_error_of_its_request_alone(options, bad):
    """A request whose logits hold NaN gets an error, never a score; its neighbour in the batch gets its own."""
    output = logits(requests=2, classes=20)
    output[0, 13] = bad
    processor = ClassificationProcessor(**options)
    if options and bad == math.inf:
        assert result(processor, output).score == 1.0  # the sigmoid of infinity is certain
    else:
        with pytest.raises(DecodeError, match=r'logits hold NaN or infinity.*dtype="float32"'):
            result(processor, output)
    assert result(processor, output, 1) == result(processor, output[1:])


def test_minus_infinity_is_a_class_that_cannot_be():
    """Logits may mask classes with minus infinity; these have score 0."""
    found = result(ClassificationProcessor(), torch.tensor([[0.0, -math.inf, 0.0]])).classes
    assert [(one.id, one.score) for one in found] == [(0, 0.5), (2, 0.5), (1, 0.0)]


@pytest.mark.parametrize("options", [{}, {"multi_label": True, "top_k": 999}], ids=str)
@pytest.mark.parametrize("classes", [1, 3, 67, 400])
def test_a_batch_gives_what_its_members_give_alone(options, classes):
    """Reducing several requests at once gives the same bits as reducing each."""
    batch = logits(requests=33, classes=classes)
    processor = ClassificationProcessor(**options)
    together = processor.reduce(batch, PARAMS)
    for row in range(33):
        alone = processor.reduce(batch[row : row + 1], PARAMS)
        assert all(torch.equal(alone[name][0], together[name][row]) for name in together)


def test_requests_in_threads_do_not_meet():
    """One instance serves differing requests at once, each as if it were alone."""
    processor = ClassificationProcessor(top_k=3)
    jobs = [logits(classes=3 + seed % 4, seed=seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda job: result(processor, job), jobs)) == [result(processor, job) for job in jobs]


@pytest.mark.parametrize(
    ("config", "options", "labels"),
    [
        ({"id2label": {"0": "land", "1": "water"}}, {}, ["water", "land"]),
        ({"id2label": {0: "land", 1: "water"}}, {}, ["water", "land"]),
        ({"id2label": {"1": "water"}}, {}, ["water", "0"]),
        ({"id2label": {"0": "same", "1": "same"}}, {}, ["same", "same"]),
        ({"id2label": None}, {}, ["1", "0"]),
        ({}, {}, ["1", "0"]),
        ({"id2label": {"0": "land", "1": "water"}}, {"class_names": ["dry", "wet"]}, ["wet", "dry"]),
    ],
)
def test_labels_come_from_the_option_then_from_config(config, options, labels):
    """class_names win over id2label, and a class that neither names is called by its number."""
    processor = ClassificationProcessor.from_config(config, options)
    assert [one.label for one in result(processor, torch.tensor([[0.0, 1.0]])).classes] == labels


@pytest.mark.parametrize("table", [["land"], {"a": "land"}, "land", {None: "x"}])
def test_a_malformed_id2label_is_refused(table):
    """The error says where it stands and what it must be."""
    with pytest.raises(OptionError, match=r"id2label in config.json must map class ids to names"):
        ClassificationProcessor.from_config({"id2label": table}, {})


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(1, 2, 4), "got float32 [1, 2, 4]"),
        (torch.zeros(2), "got float32 [2]"),
        (torch.zeros(1, 0), "got float32 [1, 0]"),
        (torch.zeros(1, 2, dtype=torch.int64), "got int64 [1, 2]"),
        ({"logits": torch.zeros(1, 2), "aux": torch.zeros(1)}, "got a dict of 2 tensors (aux, logits)"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what classification takes, and what was given."""
    with pytest.raises(ReduceError, match=r"logits \[n, classes\]") as caught:
        ClassificationProcessor().reduce(output, PARAMS)
    assert says in str(caught.value)


def test_names_must_count_the_classes_of_the_model():
    """Names for another number of classes are an error of the request."""
    with pytest.raises(ReduceError, match="class_names has 2 entries, the model emits 7 classes"):
        ClassificationProcessor(class_names=["a", "b"]).reduce(logits(), PARAMS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"class_names": "land"}, "class_names must be a list of names"),
        ({"class_names": ["land", "land"]}, "names a class twice"),
        ({"top_k": 0}, "top_k must be an integer of 1 or more, got 0"),
        ({"top_k": 2.0}, "top_k must be an integer"),
        ({"top_k": True}, "top_k must be an integer"),
        ({"multi_label": "yes"}, "multi_label must be true or false, got 'yes'"),
        ({"threshold": 1.5}, "threshold must be a number from 0 to 1, got 1.5"),
        ({"threshold": math.nan}, "threshold must be a number from 0 to 1"),
        ({"threshold": "0.5"}, "threshold must be a number from 0 to 1"),
        ({"threshold": True}, "threshold must be a number from 0 to 1"),
    ],
)
def test_malformed_options_are_refused(options, says):
    """The constructor says which option is wrong, before any request."""
    with pytest.raises(OptionError, match=says):
        ClassificationProcessor(**options)


@pytest.mark.parametrize("raw", [torch.zeros(4), {"scores": torch.zeros(4)}])
def test_decode_refuses_what_reduce_does_not_return(raw):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match="must override decode"):
        ClassificationProcessor().decode(raw, PARAMS)
