from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.embedding import EmbeddingProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

ANY = OutputParams()
FLOATS = st.floats(-1e4, 1e4, width=32)


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def result(processor, output):
    """The array that a request of a batch of one gets."""
    return processor.decode(processor.reduce(output, ANY)[0], ANY).array


def arrays(axes):
    """Outputs of a model with that many axes, the first of them for the requests."""
    return hnp.arrays(np.float32, hnp.array_shapes(min_dims=axes, max_dims=axes, max_side=6), elements=FLOATS)


@given(arrays(2))
def test_vectors_pass_as_they_are(raw):
    """What is a vector already is handed over, the same bits."""
    vectors = EmbeddingProcessor().reduce(torch.from_numpy(raw), ANY)
    assert vectors.numpy().tobytes() == raw.tobytes()


@given(arrays(3))
def test_tokens_are_pooled_as_numpy_does(raw):
    """Mean and max are over the tokens, cls is the first of them."""
    tokens = torch.from_numpy(raw[:1])
    np.testing.assert_allclose(
        result(EmbeddingProcessor(pool="mean"), tokens), raw[0].astype(np.float64).mean(axis=0), rtol=1e-5, atol=1e-2
    )
    np.testing.assert_array_equal(result(EmbeddingProcessor(pool="max"), tokens), raw[0].max(axis=0))
    np.testing.assert_array_equal(result(EmbeddingProcessor(pool="cls"), tokens), raw[0, 0])


@given(arrays(4))
def test_feature_maps_are_pooled_over_their_pixels(raw):
    """Mean and max of a feature map are those of each of its channels."""
    maps = torch.from_numpy(raw[:1])
    np.testing.assert_allclose(
        result(EmbeddingProcessor(pool="mean"), maps), raw[0].astype(np.float64).mean(axis=(1, 2)), rtol=1e-5, atol=1e-2
    )
    np.testing.assert_array_equal(result(EmbeddingProcessor(pool="max"), maps), raw[0].max(axis=(1, 2)))


@given(arrays(2))
def test_normalized_vectors_agree_with_torch(raw):
    """Vectors are divided by their length, as torch does it where lengths are not next to nothing."""
    raw[np.abs(raw) < 1e-6] = 0
    vectors = EmbeddingProcessor(normalize=True).reduce(torch.from_numpy(raw), ANY)
    torch.testing.assert_close(vectors, torch.nn.functional.normalize(torch.from_numpy(raw)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_vectors_of_any_size_have_length_one(size):
    """Squares that would overflow or vanish do no harm, the zero vector stays."""
    vectors = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]) / 4 * size
    normalized = EmbeddingProcessor(normalize=True).reduce(vectors, ANY)
    rough = 0.1 if size < 1e-38 else 1e-6  # numbers that small have few digits
    np.testing.assert_allclose(normalized.numpy(), [[0.6, 0.8, 0], [0, 0, 0]], rtol=rough)


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_a_vector_that_is_not_finite_has_no_direction(worst):
    """It becomes NaN as a whole when it is normalised, and stays as it is when not; its neighbour is not touched."""
    vectors = torch.tensor([[1.0, worst], [3.0, 4.0]])
    normalized = EmbeddingProcessor(normalize=True).reduce(vectors, ANY)
    assert normalized[0].isnan().all()
    assert normalized[1].tolist() == pytest.approx([0.6, 0.8])
    np.testing.assert_array_equal(EmbeddingProcessor().reduce(vectors, ANY), vectors)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (None, (5, 768)),
        ("mean", (5, 197, 192)),
        ("max", (5, 197, 192)),
        ("cls", (5, 197, 192)),
        ("mean", (5, 33, 61, 67)),
        ("max", (5, 33, 61, 67)),
    ],
)
def test_a_batch_gives_what_its_members_give_alone(pool, shape, normalize):
    """Reducing several requests at once gives the same bits as reducing each, whatever their strides."""
    processor, batch = EmbeddingProcessor(pool=pool, normalize=normalize), features(*shape)
    spread = batch.transpose(0, -1).contiguous().transpose(0, -1)  # the same values, other strides
    alone = torch.cat([processor.reduce(batch[place : place + 1], ANY) for place in range(len(batch))])
    assert torch.equal(processor.reduce(batch, ANY), alone)
    assert torch.equal(processor.reduce(spread, ANY), alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_means_are_those_of_float32(dtype):
    """Whatever the model's dtype, a mean is computed in float32: half precision would lose it."""
    tokens = (1000 + features(1, 4096, 3)).to(dtype)
    mean = result(EmbeddingProcessor(pool="mean"), tokens)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, tokens[0].double().mean(dim=0), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2)])
def test_one_vector_a_request_travels(dtype, size):
    """Of tokens and maps [dim] of the option's dtype leaves the device, and is returned."""
    processor = EmbeddingProcessor(pool="mean", dtype=dtype)
    for output in (features(3, 50, 8), features(3, 8, 5, 5)):
        reduced = processor.reduce(output, ANY)
        assert (reduced.shape, reduced.element_size()) == ((3, 8), size)
        assert result(processor, output[:1]).dtype == np.dtype(dtype)


def test_half_precision_refuses_what_it_cannot_hold():
    """A component beyond float16 is an error with a remedy that works; an infinity of the model's own passes."""
    vectors = torch.tensor([[1e6, 1.0, math.inf], [1e5, 0.0, 0.0]])
    with pytest.raises(ReduceError, match=r"size 1e\+06, which float16 cannot hold.*normalize"):
        EmbeddingProcessor(dtype="float16").reduce(vectors, ANY)
    halved = EmbeddingProcessor(dtype="float16", normalize=True).reduce(vectors[1:], ANY)
    assert halved.tolist() == [[1, 0, 0]]
    own = EmbeddingProcessor(dtype="float16").reduce(torch.tensor([[math.inf, 65504.0]]), ANY)
    assert own.tolist() == [[math.inf, 65504.0]]


@pytest.mark.parametrize(
    ("pool", "shape", "says"),
    [
        (
            None,
            (1, 5, 8),
            "tokens, float32 [1, 5, 8], the option pool is not set; set pool to 'mean' or 'cls' or 'max'",
        ),
        (
            None,
            (1, 8, 5, 5),
            "feature map, float32 [1, 8, 5, 5], the option pool is not set; set pool to 'mean' or 'max'",
        ),
        ("cls", (1, 8, 5, 5), "which has no 'cls'; set pool to 'mean' or 'max'"),
        ("mean", (1, 8), "nothing to pool by 'mean'; leave the option pool out"),
    ],
)
def test_pooling_that_does_not_suit_the_output_is_refused(pool, shape, says):
    """How to pool is never guessed, and never silently left out."""
    with pytest.raises(ReduceError) as caught:
        EmbeddingProcessor(pool=pool).reduce(features(*shape), ANY)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(4), "got float32 [4]"),
        (torch.zeros(1, 2, 3, 4, 5), "got float32 [1, 2, 3, 4, 5]"),
        (torch.zeros(1, 0, 8), "got float32 [1, 0, 8]"),
        (torch.zeros(1, 8, dtype=torch.int64), "got int64 [1, 8]"),
        (
            {"tokens": torch.zeros(1, 5, 8), "map": torch.zeros(1)},
            "the model emits tokens, map: set the option tensor to one of them",
        ),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what an embedding is made of, and what was given."""
    with pytest.raises(ReduceError, match=r"vectors \[n, dim\], tokens \[n, tokens, dim\] or a feature map") as caught:
        EmbeddingProcessor(pool="mean").reduce(output, ANY)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pool": "average"}, "pool must be one of mean, cls, max, or left out, got 'average'"),
        ({"pool": ["mean"]}, "pool must be"),
        ({"normalize": 1}, "normalize must be true or false"),
        ({"dtype": "bfloat16"}, "dtype must be one of float32, float16"),
        ({"dtype": None}, "dtype must be one of"),
    ],
)
def test_malformed_options_are_refused(options, says):
    """The constructor says which option is wrong, before any request."""
    with pytest.raises(OptionError, match=says):
        EmbeddingProcessor(**options)


@pytest.mark.parametrize(
    "raw", [torch.zeros(1, 8), torch.zeros(8, dtype=torch.float16), {"a": torch.zeros(8), "b": torch.zeros(8)}]
)
def test_decode_refuses_what_reduce_does_not_return(raw):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match=r"must override decode|must be one tensor"):
        EmbeddingProcessor().decode(raw, ANY)


def test_requests_in_threads_do_not_meet():
    """One instance serves requests at once, each as if it were alone."""
    processor = EmbeddingProcessor(pool="mean", normalize=True)
    jobs = [features(1, 50, 16, seed=seed) for seed in range(48)]
    alone = [result(processor, job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: result(processor, job), jobs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_result_is_its_owners():
    """Writing to a result does not change what was received, nor does reducing change what the model gave."""
    output = features(1, 8)
    before = output.clone()
    raw = EmbeddingProcessor().reduce(output, ANY)[0]
    EmbeddingProcessor().decode(raw, ANY).array[:] = 9
    assert torch.equal(raw, before[0])
    EmbeddingProcessor(normalize=True).reduce(output, ANY)
    assert torch.equal(output, before)
