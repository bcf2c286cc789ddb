"""What the worker packs the frontend unpacks, bit for bit; what is damaged is a ReduceError and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from vllm_mmout.engine import wire  # noqa: E402 - needs torch
from vllm_mmout.errors import ReduceError  # noqa: E402

pytestmark = pytest.mark.engine

NAMES = st.text(max_size=12)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def tensors(draw, requests):
    """A tensor [requests, ...] of any dtype and bits (NaN payloads too), laid out in memory in any way."""
    dtype = draw(st.sampled_from(list(wire.DTYPES.values())))
    shape = (requests, *draw(SHAPES))
    count = int(np.prod(shape)) * dtype.itemsize
    pattern = draw(st.binary(min_size=1, max_size=64)) * (count + 1)
    raw = torch.frombuffer(bytearray(pattern[: max(count, 1)]), dtype=torch.uint8)[:count]
    if dtype == torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    layout = draw(st.sampled_from(["as it is", "transposed", "strided", "expanded", "reversed axes"]))
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(1, -1).contiguous().transpose(1, -1)
    if layout == "strided":
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    if layout == "expanded":
        return tensor[:1].expand(shape)
    if layout == "reversed axes":
        return tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))
    return tensor


@st.composite
def batches(draw):
    """The number of requests, and for each pick what its ``reduce`` returned."""
    requests = draw(st.integers(1, 4))
    one = tensors(requests)
    raw = st.one_of(one, st.dictionaries(NAMES, one, min_size=1, max_size=3))
    return requests, draw(st.dictionaries(NAMES, raw, min_size=1, max_size=3))


def bits(tensor):
    """Shape, dtype and bytes of a tensor in C order, which are equal where the tensors are, NaN included."""
    whole = tensor.clone(memory_format=torch.contiguous_format)
    return tuple(tensor.shape), tensor.dtype, bytes(whole.reshape(-1).view(torch.uint8).numpy())


def all_bits(unpacked):
    return {
        name: bits(raw) if isinstance(raw, torch.Tensor) else {key: bits(tensor) for key, tensor in raw.items()}
        for name, raw in unpacked.items()
    }


def expected(picks, request):
    return all_bits(
        {
            name: raw[request] if isinstance(raw, torch.Tensor) else {key: each[request] for key, each in raw.items()}
            for name, raw in picks.items()
        }
    )


@given(batches())
def test_each_request_gets_its_own_rows(batch):
    """Unpacking a request's buffer gives the rows of its own, in order, under the names they were packed with."""
    requests, picks = batch
    buffers = wire.pack(picks)
    assert buffers.shape[0] == requests
    assert buffers.dtype == torch.uint8
    for request in range(requests):
        unpacked = wire.unpack(buffers[request])
        assert all_bits(unpacked) == expected(picks, request)
        assert list(unpacked) == list(picks)


@given(batches(), st.integers(0, 3))
def test_it_survives_vllms_own_wire(batch, place):
    """The same holds behind vLLM's encoder and decoder, as the pooling output of an engine's message."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    requests, picks = batch
    request = place % requests
    sent = EngineCoreOutput("a", [], pooling_output=wire.pack(picks)[request], finish_reason=FinishReason.STOP)
    frames = [bytes(frame) for frame in MsgpackEncoder().encode(EngineCoreOutputs(outputs=[sent]))]
    (received,) = MsgpackDecoder(EngineCoreOutputs).decode([bytearray(frame) for frame in frames]).outputs
    assert all_bits(wire.unpack(received.pooling_output)) == expected(picks, request)


@given(NAMES, NAMES, st.text())
def test_failures_come_back(processor, kind, message):
    """A failure of the worker comes back as it was, whatever its text."""
    failure = wire.Failure(processor, kind, message)
    assert wire.unpack(wire.pack_failure(failure)) == failure


@pytest.mark.parametrize("dtype", wire.DTYPES.values(), ids=wire.DTYPES)
def test_every_dtype_travels(dtype):
    """Each dtype of the table travels, 0-dimensional and empty too."""
    picks = {"a": torch.ones(2, 3).to(dtype), "b": torch.zeros(2).to(dtype), "c": torch.zeros(2, 0, 4).to(dtype)}
    assert all_bits(wire.unpack(wire.pack(picks)[1])) == expected(picks, 1)


@given(
    st.integers(1, 3), st.integers(1, 9), st.integers(120, 140), st.lists(st.integers(0, 255), min_size=1, max_size=6)
)
@example(1, 2, 128, [0, 14, 255])
@example(2, 3, 129, [0, 1])
@example(1, 2, 128, [0, 15])
@example(1, 2, 128, [254, 255])
def test_few_classes_take_half_a_byte_each(requests, rows, cols, classes):
    """Class ids come back as they were, in half the bytes where there are no more than 15 of them and nodata."""
    count = requests * rows * cols
    ids = torch.tensor((classes * count)[:count], dtype=torch.uint8).reshape(requests, rows, cols)
    picks = {"a": ids.transpose(1, 2), "b": {"x": ids}}
    buffers = wire.pack(picks)
    for request in range(requests):
        assert all_bits(wire.unpack(buffers[request])) == expected({"a": ids.transpose(1, 2), "b": {"x": ids}}, request)
    few = rows * cols >= 256 and bool(((ids < 15) | (ids == 255)).all())
    size = -(-rows * cols // 2) if few else rows * cols
    assert 2 * size <= buffers.shape[1] <= 2 * size + 4 * wire.ALIGNMENT


def test_lazy_views_travel_as_what_they_show():
    """Conjugated and negated views travel as the numbers they show, not as those in memory."""
    numbers = torch.tensor([[1 + 2j, 3 - 4j]])
    unpacked = wire.unpack(wire.pack({"conj": numbers.conj(), "imag": numbers.conj().imag})[0])
    assert unpacked["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert unpacked["imag"].tolist() == [-2.0, 4.0]


def test_tensors_are_views_of_the_frame():
    """Unpacking copies nothing."""
    buffer = wire.pack({"a": torch.arange(100.0).reshape(1, 100)})[0]
    start = buffer.untyped_storage().data_ptr()
    assert start <= wire.unpack(buffer)["a"].data_ptr() < start + buffer.nbytes


def test_dtypes_that_cannot_travel_are_refused():
    """A dtype outside the table is an error that names it and lists the table's."""
    with pytest.raises(ReduceError, match=r"dtype float8_e4m3fnuz cannot travel.* bool, uint8, .*complex128"):
        wire.pack({"a": torch.ones(1, 2).to(torch.float8_e4m3fnuz)})


def test_results_over_the_limit_are_refused():
    """A result that is too large is refused before anything is allocated."""
    huge = torch.zeros(1).expand(1, wire.MAX_BYTES // 4 + 1)
    with pytest.raises(ReduceError, match=f"over the limit of {wire.MAX_BYTES}"):
        wire.pack({"a": huge})


def value_or_reduce_error(data):
    """Unpack bytes that may be anything."""
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    try:
        return wire.unpack(buffer)
    except ReduceError:
        return None


GOLDEN = {"a": torch.arange(6.0).reshape(1, 6), "b": {"x": torch.ones(1, 2, dtype=torch.bool), "y": torch.zeros(1, 0)}}


@given(st.data())
def test_cut_off_buffers(data):
    """A buffer that ends early gives a ReduceError, or the value where only padding was lost."""
    whole = bytes(wire.pack(GOLDEN)[0].numpy())
    cut = data.draw(st.integers(0, len(whole)))
    unpacked = value_or_reduce_error(whole[:cut])
    if unpacked is not None:
        assert all_bits(unpacked) == expected(GOLDEN, 0)
        assert cut > len(whole) - wire.ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8))
def test_damaged_buffers(changes):
    """Bytes changed anywhere give a ReduceError or some value, never another exception."""
    damaged = bytearray(wire.pack(GOLDEN)[0].numpy())
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    value_or_reduce_error(damaged)


HEADS = st.tuples(
    NAMES,
    st.one_of(st.sampled_from(list(wire.DTYPES)), NAMES),
    st.lists(st.one_of(st.integers(-3, 5), st.integers(-(2**63), 2**63 - 1)), max_size=5),
    st.one_of(st.integers(-128, 512), st.integers(-(2**63), 2**63 - 1)),
    st.booleans(),
)


@given(st.lists(st.tuples(NAMES, st.booleans(), st.lists(HEADS, max_size=3)), max_size=3), st.binary(max_size=256))
@example([("a", False, [("x", "float32", [0, 2**62, 2**62], 0)])], b"")
@example([("a", False, [("x", "uint8", [1] * 70, 0)])], b"12")
@example([("a", False, [("x", "uint8", [5], 0, True)])], b"12")
@example([("a", False, [("x", "int16", [2], 0, True)])], b"12")
@example([("a", True, [])], b"")
@example([("a", True, [("x", "uint8", [1], 0), ("y", "uint8", [1], 0)])], b"12")
def test_lying_headers(picks, elements):
    """Headers that are well-formed and wrong give a ReduceError or some value, never another exception."""
    import msgspec

    body = msgspec.msgpack.encode([picks, None])
    value_or_reduce_error(wire.MAGIC + len(body).to_bytes(4, "little") + body + elements)


@given(st.binary(max_size=64), st.booleans())
@example(b"\x91" * 60_000, False)
@example(b"\x92" + b"\x90" + b"\x91" * 60_000, False)
@example(b"\x93\x90\xc0" + b"\x91" * 60_000, False)
@example(b"\x92\x90\x93\xa1\xff\xa1a\xa1a", False)
def test_garbage(body, foreign):
    """Bytes that were never a buffer give a ReduceError, never another exception."""
    head = b"" if foreign else wire.MAGIC + len(body).to_bytes(4, "little")
    value_or_reduce_error(head + body)


@pytest.mark.parametrize("tensor", [torch.zeros(8), torch.zeros((2, 8), dtype=torch.uint8), torch.empty(0)])
def test_raw_tensors_are_no_buffers(tensor):
    """A tensor that no worker of ours packed is an error that says how that comes."""
    with pytest.raises(ReduceError, match="VLLM_PLUGINS"):
        wire.unpack(tensor)
