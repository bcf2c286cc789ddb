from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs.rendering import default_palette
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import SegmentationProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

CLASSES = OutputParams()
PROBABILITIES = OutputParams(output="probabilities")
CONFIDENCE = OutputParams(output="confidence")


def logits(requests=1, classes=4, height=9, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(requests, classes, height, width, generator=generator)


def result(processor, output, params=CLASSES):
    """What a request of a batch of one gets."""
    return processor.decode(processor.reduce(output, params)[0], params)


def softmax(values):
    """Numpy's softmax over axis 0, in float64."""
    exponents = np.exp(values.astype(np.float64) - values.max(axis=0))
    return exponents / exponents.sum(axis=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 17])
def test_classes_are_those_of_the_highest_logits(classes, dtype):
    """Class ids equal numpy's argmax, ties included, as one band of uint8."""
    output = logits(classes=classes).round().to(dtype)  # rounded: plenty of ties
    ids = result(SegmentationProcessor(), output)
    assert ids.array.dtype == np.uint8
    np.testing.assert_array_equal(ids.array, output[0].to(torch.float64).numpy().argmax(axis=0)[None])


@pytest.mark.parametrize(
    ("classes", "dtype", "nodata"),
    [
        (2, np.uint8, 255),
        (255, np.uint8, 255),
        (256, np.uint16, 65535),
        (300, np.uint16, 65535),
        (65535, np.uint16, 65535),
    ],
)
def test_nodata_is_no_class(classes, dtype, nodata):
    """The highest class id fits its dtype and differs from nodata."""
    output = torch.zeros(1, classes, 1, 2)
    output[0, -1] = 1
    ids = result(SegmentationProcessor(), output)
    assert (ids.array.dtype, ids.nodata) == (dtype, nodata)
    assert ids.array.tolist() == [[[classes - 1] * 2]]
    assert classes - 1 != nodata


@pytest.mark.parametrize("classes", [2, 300])
def test_a_pixel_with_nan_has_no_class(classes):
    """One NaN among a pixel's logits makes it nodata, and no other pixel."""
    output = logits(classes=classes)
    output[0, 1, 4, 3] = math.nan
    ids = result(SegmentationProcessor(), output)
    assert np.argwhere(ids.array[0] == ids.nodata).tolist() == [[4, 3]]


def test_only_ids_travel():
    """Of the logits one byte a pixel leaves the device."""
    reduced = SegmentationProcessor().reduce(logits(requests=3), CLASSES)
    assert (reduced.dtype, reduced.shape) == (torch.uint8, (3, 9, 7))


@pytest.mark.parametrize("classes", [2, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_few_classes_are_chosen_as_torch_chooses(dtype, classes):
    """With ties, NaN and infinities everywhere, ids are those of torch's own max in every precision."""
    generator = torch.Generator().manual_seed(classes)
    output = (torch.randn(3, classes, 40, 41, generator=generator) * 2).round().to(dtype)
    picks = torch.rand(output.shape, generator=generator)
    for value, (low, high) in {math.nan: (0, 0.02), math.inf: (0.02, 0.1), -math.inf: (0.1, 0.3)}.items():
        output[(picks >= low) & (picks < high)] = value
    best = output.max(dim=1)
    expected = torch.where(best.values.isnan(), 255, best.indices)
    assert torch.equal(SegmentationProcessor().reduce(output, OutputParams()).long(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_probabilities_are_the_softmax(dtype):
    """Probabilities agree with numpy's softmax in float64, as float32 of a band a class."""
    output = logits().to(dtype)
    probabilities = result(SegmentationProcessor(), output, PROBABILITIES)
    assert (probabilities.array.dtype, probabilities.array.shape) == (np.float32, (4, 9, 7))
    assert math.isnan(probabilities.nodata)
    np.testing.assert_allclose(probabilities.array, softmax(output[0].to(torch.float64).numpy()), rtol=1e-5, atol=1e-7)


def test_confidence_is_the_best_probability():
    """Confidence is one float32 band: the highest of the probabilities."""
    output = logits()
    confidence = result(SegmentationProcessor(), output, CONFIDENCE)
    assert (confidence.array.dtype, confidence.array.shape) == (np.float32, (1, 9, 7))
    assert math.isnan(confidence.nodata)
    np.testing.assert_array_equal(
        confidence.array[0], result(SegmentationProcessor(), output, PROBABILITIES).array.max(axis=0)
    )


def test_huge_logits_do_not_overflow():
    """Logits beyond the range of exp give probabilities all the same."""
    output = torch.tensor([-1e30, 1e30]).reshape(1, 2, 1, 1)
    assert result(SegmentationProcessor(), output, PROBABILITIES).array.ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("params", [CLASSES, PROBABILITIES, CONFIDENCE], ids=lambda params: params.output or "classes")
def test_a_batch_gives_what_its_members_give_alone(params):
    """Reducing several requests at once gives the same bits as reducing each."""
    batch = logits(requests=5, classes=3, height=61, width=67)
    processor = SegmentationProcessor()
    alone = torch.cat([processor.reduce(batch[row : row + 1], params) for row in range(5)])
    assert torch.equal(processor.reduce(batch, params), alone)


def test_requests_in_threads_do_not_meet():
    """One instance serves differing requests at once, each as if it were alone."""
    processor = SegmentationProcessor(class_names=["a", "b", "c", "d"])
    jobs = [(logits(seed=seed), (CLASSES, PROBABILITIES, CONFIDENCE)[seed % 3]) for seed in range(48)]
    alone = [result(processor, *job).array for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: result(processor, *job).array, jobs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_and_colours_reach_the_raster():
    """Classes carry names and palette, probabilities a name a band."""
    processor = SegmentationProcessor(class_names=["land", "water"], palette=["#d9cfb4", [0, 114, 178]])
    ids = result(processor, logits(classes=2))
    assert tuple(ids.class_names) == ("land", "water")
    assert np.asarray(ids.palette).tolist() == [[217, 207, 180], [0, 114, 178]]
    probabilities = result(processor, logits(classes=2), PROBABILITIES)
    assert tuple(probabilities.band_names) == ("land", "water")


def test_without_a_palette_classes_have_the_default_colours():
    """The default palette covers every class, named or not."""
    named = result(SegmentationProcessor(class_names=["a", "b", "c", "d"]), logits())
    np.testing.assert_array_equal(named.palette, default_palette(4))
    np.testing.assert_array_equal(result(SegmentationProcessor(), logits()).palette, default_palette(255))


def test_an_unknown_output_lists_the_known_ones():
    """Both sides refuse an output that the processor does not have, and say which it has."""
    asked = OutputParams(output="probs")
    for call in (SegmentationProcessor().reduce, SegmentationProcessor().decode):
        with pytest.raises(OptionError, match=r"'probs'.*\(known: classes, .*, polygons, areas\)"):
            call(logits(), asked)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(1, 1, 4, 4), "2 or more classes, got float32 [1, 1, 4, 4]"),
        (torch.zeros(2, 4, 4), "got float32 [2, 4, 4]"),
        (torch.zeros(1, 2, 4, 4, dtype=torch.uint8), "got uint8 [1, 2, 4, 4]"),
        ({"logits": torch.zeros(1, 2, 4, 4), "aux": torch.zeros(1)}, "got a dict of 2 tensors (aux, logits)"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what segmentation takes, and what was given."""
    with pytest.raises(ReduceError, match=r"logits \[n, classes, height, width\]") as caught:
        SegmentationProcessor().reduce(output, CLASSES)
    assert says in str(caught.value)


@pytest.mark.parametrize("options", [{"class_names": ["a", "b"]}, {"palette": ["#000000", "#ffffff"]}])
def test_options_must_count_the_classes_of_the_model(options):
    """Names or colours for another number of classes are an error of the request."""
    with pytest.raises(ReduceError, match="has 2 entries, the model emits 4 classes"):
        SegmentationProcessor(**options).reduce(logits(classes=4), CLASSES)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"class_names": "land"}, "class_names must be a list of names"),
        ({"class_names": []}, "class_names must be a list of names"),
        ({"class_names": ["land", 1]}, "class_names must be a list of names"),
        ({"class_names": ["land", "land"]}, "names a class twice"),
        ({"palette": []}, "palette must be a list of colours"),
        ({"class_names": ["land", "water"], "palette": ["#000000"]}, "palette has 1 colours for 2 class_names"),
    ],
)
def test_malformed_options_are_refused(options, says):
    """The constructor says which option is wrong, before any request."""
    with pytest.raises(OptionError, match=says):
        SegmentationProcessor(**options)


@pytest.mark.parametrize(
    ("raw", "params"),
    [
        (torch.zeros(4, 4), CLASSES),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), CLASSES),
        (torch.zeros(4, 4), PROBABILITIES),
        (torch.zeros(2, 4, 4), CONFIDENCE),
    ],
)
def test_decode_refuses_what_reduce_does_not_return(raw, params):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match="must override decode"):
        SegmentationProcessor().decode(raw, params)


def test_a_result_is_its_owners():
    """Writing to a result changes neither what was received nor the palette of later results."""
    processor = SegmentationProcessor(palette=["#000000", "#ffffff"])
    raw = processor.reduce(logits(classes=2), CLASSES)[0]
    before = raw.clone()
    ids = processor.decode(raw, CLASSES)
    ids.array[:] = 9
    assert torch.equal(raw, before)
    assert not processor.decode(raw, CLASSES).palette.flags.writeable
