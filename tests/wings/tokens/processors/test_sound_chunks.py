"""Sounds decoded in chunks: joined they are the decode of the whole, however the tokens come."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens import CodecAudioProcessor
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout
from vllm_mmout.wings.tokens.processors.chunked import SoundPiece

torch = pytest.importorskip("torch", reason="decoders are of torch")
pytestmark = pytest.mark.engine

ANY, IN_CHUNKS = OutputParams(), OutputParams(chunk_seconds=1)
CODES = 32
FLAT = TokenLayout(modality="audio", first=100, size=CODES, codebooks=4)
ORPHEUS = TokenLayout(
    modality="audio", first=100, size=CODES, codebooks=3, order="interleaved", pattern=(0, 1, 2, 2, 1, 2, 2)
)
MOST = 70
"""Frames: more than any of these decoders hears around one."""
SPLITS = st.lists(st.integers(1, 25), min_size=1, max_size=5)
"""Frames of each piece."""
PROPERTY = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sound(frames, rates=(1, 1, 1, 1), seed=0):
    """Codes of any sound."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, CODES, frames * rate) for rate in rates]


def first_of(codes, frames, rates, *, complete=False):
    """The medium of its first frames."""
    begun = tuple(ids[: frames * rate] for ids, rate in zip(codes, rates, strict=True))
    return Medium(0, frames * sum(rates), begun, complete=complete)


def whole_of(processor, codes, rates=(1, 1, 1, 1)):
    """Samples of its decode at once."""
    return processor.decode(first_of(codes, codes[0].size // rates[0], rates, complete=True), ANY).samples


def chunks_of(processor, codes, split, rates=(1, 1, 1, 1)):
    """Samples of each chunk, where so many frames come at a time."""
    state, come, made = processor.begin(IN_CHUNKS), 0, []
    total = codes[0].size // rates[0]
    for step in split:
        come = min(come + step, total - 1)
        if come:
            made += processor.decode(SoundPiece(first_of(codes, come, rates), ended=False), IN_CHUNKS, state)
    made += processor.decode(SoundPiece(first_of(codes, total, rates), ended=True), IN_CHUNKS, state)
    return [chunk.samples for chunk in made]


@pytest.fixture(scope="module")
def processor_of(decoder_folder):
    """Gives the processor of a decoder in tiny_decoders, made once."""
    made = {}

    def processor(name, **options):
        key = name, *options
        if key not in made:
            made[key] = CodecAudioProcessor.from_config(
                {}, {"layout": FLAT, "decoder": decoder_folder(name), "threads": 1, **options}
            )
        return made[key]

    return processor


@pytest.mark.parametrize("name", ["mimi", "encodec"])
@PROPERTY
@given(frames=st.integers(1, MOST), split=SPLITS)
def test_causal_codecs_go_on_where_they_were(processor_of, name, frames, split):
    """What layers remember makes chunks exact: in float64 the joined samples are the whole's to float32's last bit."""
    processor = processor_of(name, dtype="float64")
    codes = sound(frames, seed=frames)
    chunks = chunks_of(processor, codes, split)
    np.testing.assert_array_max_ulp(np.concatenate(chunks, axis=1), whole_of(processor, codes), maxulp=1)
    assert processor.chunking().ahead == 0


@pytest.mark.parametrize("name", ["mimi", "encodec", "dac", "xcodec"])
@PROPERTY
@given(frames=st.integers(1, MOST), split=SPLITS)
def test_chunks_of_any_split_are_the_whole(processor_of, name, frames, split):
    """In float32 within 1e-5 of the loudest sample, none lost at a border and none twice."""
    processor = processor_of(name)
    codes = sound(frames, seed=frames)
    joined, whole = np.concatenate(chunks_of(processor, codes, split), axis=1), whole_of(processor, codes)
    assert joined.shape == whole.shape
    assert np.abs(joined - whole).max() <= 1e-5 * max(1.0, np.abs(whole).max())


@pytest.mark.parametrize("changes", [{}, {"attn_window_size": 8, "decoder_dim": 64}])
@PROPERTY
@given(frames=st.integers(1, MOST), split=SPLITS)
def test_chunks_of_several_rates_are_the_whole(snac_processor, changes, frames, split):
    """SNAC's codebooks have different rates, and its attention windows that begin at multiples of theirs."""
    processor, rates = snac_processor(**changes), (1, 2, 4)
    codes = sound(frames, rates, seed=frames)
    joined = np.concatenate(chunks_of(processor, codes, split, rates), axis=1)
    np.testing.assert_allclose(joined, whole_of(processor, codes, rates), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def snac_processor(snac_folder):
    """Gives the processor of a SNAC, made once."""
    made = {}

    def processor(**changes):
        key = json.dumps(changes)
        if key not in made:
            made[key] = CodecAudioProcessor.from_config(
                {}, {"layout": ORPHEUS, "decoder": snac_folder(**changes), "threads": 1}
            )
        return made[key]

    return processor


def test_chunks_come_before_the_end(processor_of, snac_processor):
    """A causal codec decodes what has come, others what is so many frames back as they look ahead."""
    assert len(chunks_of(processor_of("mimi"), sound(40), [10] * 3)) == 4
    ahead = snac_processor().chunking().ahead
    assert 0 < ahead < 20
    first, rest = chunks_of(snac_processor(), sound(40, (1, 2, 4)), [ahead, 1], (1, 2, 4))
    assert (first.shape[1], rest.shape[1]) == (16, 39 * 16)


def test_noise_is_no_context(snac_processor):
    """A decoder that mixes in random numbers is measured as one without."""
    assert snac_processor(noise=True).chunking().ahead == snac_processor().chunking().ahead


def test_a_decoder_that_hears_everything_is_refused(decoder_folder):
    """X-Codec 2 norms over the whole sound: an error says so, every time."""
    layout = TokenLayout(modality="audio", first=100, size=CODES)
    processor = CodecAudioProcessor.from_config({}, {"layout": layout, "decoder": decoder_folder("xcodec2")})
    for _ in range(2):
        with pytest.raises(OptionError, match="so it cannot decode in chunks; leave chunk_seconds out") as raised:
            processor.begin(IN_CHUNKS)
        assert raised.value.param == "chunk_seconds"


class Blurred:
    """A decoder of one's own: a sample a code, each the mean of three; at the end there is one less, or one more."""

    sampling_rate = 800

    def __init__(self, beyond=0):
        self.beyond = beyond
        self.calls = 0

    def decode(self, codes):
        self.calls += 1
        last = codes[:, -1].double()
        padded = torch.nn.functional.pad(last, (1, 1 + self.beyond))
        return padded.unfold(1, 3, 1).sum(-1) / 3


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@PROPERTY
@given(frames=st.integers(2, MOST), split=SPLITS)
def test_a_decoder_of_ones_own_is_measured(beyond, frames, split):
    """Also one whose sounds are shorter or longer than their frames: the last chunk has what the others have not."""
    processor = CodecAudioProcessor(layout=FLAT, decoder=Blurred(beyond))
    codes = sound(frames, seed=frames)
    joined = np.concatenate(chunks_of(processor, codes, split), axis=1)
    assert joined.shape == (1, frames + beyond)
    np.testing.assert_array_equal(joined, whole_of(processor, codes))


def test_a_declared_context_is_not_measured():
    """The option says how far a decoder hears; too little of it is heard at the borders."""
    decoder = Blurred()
    processor = CodecAudioProcessor(layout=FLAT, decoder=decoder, context=[1, 1])
    chunking = processor.chunking()
    assert (chunking.ahead, chunking.frame_samples, decoder.calls) == (1, 1, 3)
    wrong = CodecAudioProcessor(layout=FLAT, decoder=Blurred(), context=[0, 0])
    codes = sound(20)
    assert not np.array_equal(np.concatenate(chunks_of(wrong, codes, [9]), axis=1), whole_of(wrong, codes))


@pytest.mark.parametrize("context", [3, [1], [1, 2, 3], [-1, 1], [1.0, 1], "11", [True, 1]])
def test_a_context_that_is_none_is_refused(context):
    """It is two numbers of frames."""
    with pytest.raises(OptionError, match="context must be two integers of 0 or more"):
        CodecAudioProcessor(layout=FLAT, decoder=Blurred(), context=context)


@pytest.mark.parametrize(
    ("made", "says"), [((7, 7, 7), "number per frame is not constant"), ((16, 33, 47), "per frame is not")]
)
def test_lengths_that_do_not_grow_evenly_are_refused(made, says):
    """There is no telling which samples are whose."""
    decoder, lengths = Blurred(), iter(made)
    decoder.decode = lambda codes: torch.zeros(1, next(lengths))
    with pytest.raises(OptionError, match=says):
        CodecAudioProcessor(layout=FLAT, decoder=decoder).chunking()


def test_other_results_are_refused():
    """A decoder must make samples, in chunks as well."""
    decoder = Blurred()
    decoder.decode = lambda codes: codes
    with pytest.raises(DecodeError, match="must make floating-point samples"):
        CodecAudioProcessor(layout=FLAT, decoder=decoder).chunking()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1"])
def test_a_length_that_is_none_is_refused(seconds):
    """chunk_seconds is a number above 0."""
    with pytest.raises(OptionError, match="chunk_seconds") as raised:
        OutputParams(chunk_seconds=seconds)
    assert raised.value.param == "chunk_seconds"
