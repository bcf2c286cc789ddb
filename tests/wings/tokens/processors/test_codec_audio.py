from __future__ import annotations

import sys

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.outputs.audio import AudioOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens import CodecAudioProcessor
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout, parse

torch = pytest.importorskip("torch", reason="decoders are of torch")
pytestmark = pytest.mark.engine

ANY = OutputParams()
CODES = 32
RATE = 800
RESIDUAL = {"mimi": "MimiModel", "dac": "DacModel", "encodec": "EncodecModel", "xcodec": "XcodecModel"}
"""With four codebooks."""
CODECS = {**RESIDUAL, "xcodec2": "Xcodec2Model"}
FLAT = TokenLayout(modality="audio", first=100, size=CODES, codebooks=4)
ORPHEUS = TokenLayout(
    modality="audio", first=100, size=CODES, codebooks=3, order="interleaved", pattern=(0, 1, 2, 2, 1, 2, 2)
)


def sound(*lengths, seed=0, **changes):
    """A sound's codes, drawn at random: one length a codebook."""
    draw = np.random.default_rng(seed)
    codes = tuple(draw.integers(0, CODES, length) for length in lengths)
    return Medium(**{"start": 3, "stop": 9, "codes": codes, "complete": True, **changes})


def frames(count, codebooks=4, **changes):
    return sound(*[count] * codebooks, **changes)


def snac_sound(count, **changes):
    return sound(count, 2 * count, 4 * count, **changes)


def plain_samples(name, folder, codes):
    """What the codec of transformers makes of one sound's codes: float32 [channels, samples]."""
    import transformers

    model = getattr(transformers, CODECS[name]).from_pretrained(folder).eval()
    ids = torch.from_numpy(np.stack(codes))[None]
    with torch.no_grad():
        if name == "dac":
            return model.decode(audio_codes=ids).audio_values.numpy()
        if name == "encodec":
            return model.decode(ids[None], [None]).audio_values[0].numpy()
        return model.decode(ids).audio_values[0].numpy()


def processor_of(folder, layout=FLAT, **options):
    return CodecAudioProcessor.from_config({}, {"layout": layout, "decoder": folder, **options})


class TestSounds:
    @pytest.mark.parametrize(
        ("name", "codebooks"), [*((name, books) for name in RESIDUAL for books in (4, 2, 1)), ("xcodec2", 1)]
    )
    def test_one_is_what_plain_transformers_decodes(self, decoder_folder, name, codebooks):
        """The samples are those of the codec called alone on the same codes, bit for bit, with fewer codebooks too."""
        folder = decoder_folder(name)
        layout = TokenLayout(modality="audio", first=100, size=CODES, codebooks=codebooks)
        processor = processor_of(folder, layout)
        one, other = frames(9, codebooks), frames(9, codebooks, seed=1)
        output = processor.decode(one, ANY)
        assert isinstance(output, AudioOutput)
        assert (output.rate, output.channels, output.samples.dtype) == (RATE, 1, np.float32)
        np.testing.assert_array_equal(output.samples, plain_samples(name, folder, one.codes))
        assert not np.array_equal(output.samples, processor.decode(other, ANY).samples), "codes must matter"

    @pytest.mark.parametrize("name", CODECS)
    def test_a_batch_is_its_members_alone(self, decoder_folder, name):
        """Decoded at once, sounds come in their order and differ by 1e-4 at most."""
        layout = FLAT if name in RESIDUAL else TokenLayout(modality="audio", first=100, size=CODES)
        processor = processor_of(decoder_folder(name), layout)
        media = [frames(12, layout.codebooks, seed=seed) for seed in range(5)]
        for together, one in zip(processor.decode_batch(media), media, strict=True):
            np.testing.assert_allclose(together.samples, processor.decode(one, ANY).samples, rtol=0, atol=1e-4)
            assert together.samples.base is None or together.samples.base.size == together.samples.size

    def test_sounds_of_one_length_go_together(self, decoder_folder):
        """Only media with as many codes are decoded at once."""
        processor = processor_of(decoder_folder("mimi"))
        assert processor.batch_key(frames(5)) == processor.batch_key(frames(5, seed=1))
        assert processor.batch_key(frames(5)) != processor.batch_key(frames(6))

    @pytest.mark.parametrize("order", ["flattened", "interleaved", "delayed", "sequential"])
    def test_tokens_become_a_sound(self, decoder_folder, order):
        """Whatever the order of the tokens, the same codes give the same sound; it says what it was made of."""
        folder = decoder_folder("dac")
        pad = {"pad": 99} if order == "delayed" else {}
        layout = TokenLayout(
            modality="audio", first=100, size=CODES, codebooks=4, order=order, begin=(80,), end=(81,), **pad
        )
        codes = frames(6).codes
        _, found = parse(layout, [7, *layout.build(codes)])
        output = processor_of(folder, layout).decode(found[0], ANY)
        assert (output.partial, output.span) == (False, (1, 1 + layout.tokens_of_frames(6)))
        np.testing.assert_array_equal(output.samples, plain_samples("dac", folder, codes))

    def test_what_the_stream_left_unfinished_is_partial(self, decoder_folder):
        """The frames that came are decoded, and the output says that there should be more."""
        folder = decoder_folder("mimi")
        cut = frames(4, complete=False)
        output = processor_of(folder).decode(cut, ANY)
        assert output.partial
        np.testing.assert_array_equal(output.samples, plain_samples("mimi", folder, cut.codes))

    def test_a_codec_in_chunks_and_two_channels(self, tmp_path):
        """EnCodec for music, in stereo and made for chunks, decodes a sound as one chunk."""
        from transformers import EncodecConfig, EncodecModel

        stereo = {"audio_channels": 2, "normalize": True, "chunk_length_s": 1.0, "overlap": 0.01}
        small = {"hidden_size": 8, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": CODES}
        rates = {"sampling_rate": RATE, "target_bandwidths": [1.0, 2.0]}
        torch.manual_seed(0)
        EncodecModel(EncodecConfig(**stereo, **small, **rates, norm_type="time_group_norm")).save_pretrained(tmp_path)
        one = frames(150)
        output = processor_of(tmp_path).decode(one, ANY)
        assert (output.channels, output.duration) == (2, 1.5)
        np.testing.assert_array_equal(output.samples, plain_samples("encodec", tmp_path, one.codes))

    def test_formats_are_those_of_sounds(self):
        """A name of a file that no sound has is refused before anything runs."""
        assert CodecAudioProcessor(layout=FLAT, decoder="x").formats(ANY) == AudioOutput.formats

    def test_a_sound_without_codes_is_that_requests_error(self, decoder_folder):
        """Markers with nothing between them decode to nothing."""
        with pytest.raises(DecodeError, match="no codes between its markers"):
            processor_of(decoder_folder("mimi")).decode(frames(0), ANY)

    def test_the_rate_is_an_option(self, decoder_folder):
        """What the option says counts, not what the decoder does."""
        assert processor_of(decoder_folder("dac"), sampling_rate=16000).decode(frames(3), ANY).rate == 16000


@pytest.fixture(scope="module")
def folder(snac_folder):
    return snac_folder()


def plain_snac(folder, codes, seed=0):
    """What the package snac makes of one sound's codes: float32 [channels, samples]."""
    from snac import SNAC

    model = SNAC.from_pretrained(str(folder))
    torch.manual_seed(seed)
    with torch.no_grad():
        return model.decode([torch.from_numpy(ids)[None] for ids in codes])[0].numpy()


class TestSnac:
    def test_one_is_what_the_package_decodes(self, folder):
        """Codebooks of three rates, as Orpheus writes them, give the package's own samples, bit for bit."""
        codes = snac_sound(5).codes
        _, found = parse(ORPHEUS, ORPHEUS.build(codes))
        output = processor_of(folder, ORPHEUS).decode(found[0], ANY)
        assert (output.rate, output.samples.shape) == (RATE, (1, 5 * 4 * 4))
        np.testing.assert_array_equal(output.samples, plain_snac(folder, codes))
        assert not np.array_equal(output.samples, plain_snac(folder, snac_sound(5, seed=1).codes))

    def test_a_batch_is_its_members_alone(self, folder):
        """Decoded at once, sounds come in their order and differ by 1e-4 at most."""
        processor = processor_of(folder, ORPHEUS)
        media = [snac_sound(6, seed=seed) for seed in range(4)]
        for together, one in zip(processor.decode_batch(media), media, strict=True):
            np.testing.assert_allclose(together.samples, processor.decode(one, ANY).samples, rtol=0, atol=1e-4)

    def test_windows_of_attention_are_filled_up(self, snac_folder):
        """A decoder that takes whole windows decodes any number of frames, whole windows as the package does."""
        folder = snac_folder(attn_window_size=8, decoder_dim=64)
        processor = processor_of(folder, ORPHEUS)
        whole = snac_sound(4)
        np.testing.assert_array_equal(processor.decode(whole, ANY).samples, plain_snac(folder, whole.codes))
        one = snac_sound(3)
        filled = [np.concatenate([ids, np.zeros(rate, int)]) for ids, rate in zip(one.codes, (1, 2, 4), strict=True)]
        samples = processor.decode(one, ANY).samples
        assert samples.shape == (1, 3 * 4 * 4)
        np.testing.assert_array_equal(samples, plain_snac(folder, filled)[:, :48])

    def test_noise_is_the_packages_own(self, snac_folder):
        """A decoder that mixes in noise gives the package's samples for the same state of torch's generator."""
        folder = snac_folder(noise=True)
        processor, one = processor_of(folder, ORPHEUS), snac_sound(3)
        processor.load()
        torch.manual_seed(0)
        ours = processor.decode(one, ANY).samples
        np.testing.assert_array_equal(ours, plain_snac(folder, one.codes))
        assert not np.array_equal(ours, processor.decode(one, ANY).samples)

    def test_a_decoder_made_in_python_is_known(self, folder):
        """A SNAC that was loaded in Python is checked and called like one of a folder."""
        from snac import SNAC

        processor = processor_of(SNAC.from_pretrained(str(folder)), ORPHEUS)
        output = processor.decode(snac_sound(2), ANY)
        assert output.rate == RATE
        np.testing.assert_array_equal(output.samples, plain_snac(folder, snac_sound(2).codes))

    @pytest.mark.parametrize(
        ("layout", "says"),
        [
            (FLAT, "layout has 4 codebooks of 32 codes, but decoder .* has 3 of 32; correct"),
            (
                TokenLayout(modality="audio", first=100, size=CODES, codebooks=3),
                "has 1 : 1 : 1 codes per frame in its codebooks, decoder .* needs 1 : 2 : 4",
            ),
            (
                TokenLayout(
                    modality="audio", first=100, size=CODES, codebooks=3, order="interleaved", pattern=(0, 1, 2, 2)
                ),
                "has 1 : 1 : 2 codes per frame in its codebooks, decoder .* needs 1 : 2 : 4",
            ),
            (
                TokenLayout(
                    modality="audio", first=100, size=CODES, codebooks=2, order="interleaved", pattern=(0, 1, 1)
                ),
                "layout has 2 codebooks of 32 codes, but decoder .* has 3 of 32; correct",
            ),
        ],
    )
    def test_other_layouts_are_refused(self, folder, layout, says):
        """SNAC takes all its codebooks, each at its rate."""
        with pytest.raises(OptionError, match=says):
            processor_of(folder, layout)

    def test_damaged_weights_are_named(self, folder, tmp_path):
        """Weights that cannot be loaded are an error of the decoder's folder."""
        from vllm_mmout.errors import ModelError

        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        (tmp_path / "pytorch_model.bin").write_bytes(b"no weights")
        with pytest.raises(ModelError, match=r"weights of decoder .* \(snac\) cannot be loaded"):
            processor_of(tmp_path, ORPHEUS).load()


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    """SNAC without its package is an error that says what to install."""
    monkeypatch.setitem(sys.modules, "snac", None)
    (tmp_path / "config.json").write_text('{"vq_strides": [4, 2, 1], "codebook_size": 32, "sampling_rate": 800}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(OptionError, match=r'pip install "vllm-mmout\[snac\]"'):
        processor_of(tmp_path, ORPHEUS)


class TestMisfits:
    @pytest.mark.parametrize("name", RESIDUAL)
    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"codebooks": 5}, "layout has 5 codebooks of 32 codes"),
            ({"codebooks": 4, "size": 16}, "layout has 4 codebooks of 16 codes"),
            ({"codebooks": 2, "size": (32, 16)}, "layout has 2 codebooks of 16 and 32 codes"),
        ],
    )
    def test_codebooks_must_agree(self, decoder_folder, name, fields, says):
        """More codebooks, or others, are refused before anything starts; layout and decoder are named."""
        order = {"order": "interleaved"} if isinstance(fields.get("size"), tuple) else {}
        layout = TokenLayout(**{"modality": "audio", "first": 100, "size": CODES, **fields, **order})
        with pytest.raises(
            OptionError, match=rf"{says}, but decoder .*{name} \({name}\) has 4 of 32, and also accepts fewer"
        ):
            processor_of(decoder_folder(name), layout)

    def test_the_one_codebook_must_agree(self, decoder_folder):
        """X-Codec 2 has a code for each vector of levels."""
        with pytest.raises(
            OptionError, match=r"4 codebooks of 32 codes, but decoder .*xcodec2 \(xcodec2\) has 1 of 32"
        ):
            processor_of(decoder_folder("xcodec2"), FLAT)

    def test_rates_must_agree(self, decoder_folder):
        """Mimi's codebooks have one rate; the layout of SNAC is none of its."""
        with pytest.raises(
            OptionError, match=r"1 : 2 : 4 codes per frame in its codebooks, decoder .* needs 1 : 1 : 1"
        ):
            processor_of(decoder_folder("mimi"), ORPHEUS)

    def test_a_decoder_of_pictures_makes_no_sounds(self, decoder_folder):
        """A decoder of pictures is refused with the processor that takes it."""
        with pytest.raises(OptionError, match="set output_processor='vq_image'"):
            processor_of(decoder_folder("emu3"))

    def test_a_layout_of_pictures_is_refused(self):
        """The layout must be of sounds."""
        layout = {"modality": "image", "first": 5, "size": 9, "grid": [2, 2]}
        with pytest.raises(OptionError, match="layout is for image, but output processor 'codec_audio' makes audio"):
            CodecAudioProcessor(layout=layout, decoder="x")


class Tones:
    """A decoder of one's own, not even of torch: a code is a sample."""

    def __init__(self, sampling_rate=None, channels=None):
        if sampling_rate:
            self.sampling_rate = sampling_rate
        self.channels = channels
        self.seen = []

    def decode(self, codes):
        self.seen.append([ids.shape for ids in codes] if isinstance(codes, list) else codes.shape)
        last = codes[-1] if isinstance(codes, list) else codes[:, -1]
        samples = last.float() / CODES
        return samples if self.channels is None else samples[:, None].expand(-1, self.channels, -1)


class TestOwnDecoders:
    @pytest.mark.parametrize(("channels", "made"), [(None, 1), (1, 1), (2, 2)])
    def test_anything_that_decodes(self, channels, made):
        """An object handed in is called with [n, codebooks, frames] and may leave the axis of channels out."""
        decoder = Tones(RATE, channels)
        outputs = processor_of(decoder).decode_batch([frames(7), frames(7, seed=1)])
        assert decoder.seen == [(2, 4, 7)]
        assert [(output.rate, output.channels) for output in outputs] == [(RATE, made)] * 2
        np.testing.assert_array_equal(outputs[1].samples[-1] * CODES, frames(7, seed=1).codes[3])

    def test_codebooks_of_different_rates_come_as_a_list(self):
        """What cannot be one tensor is a list of [n, codes]."""
        decoder = Tones(RATE)
        processor_of(decoder, ORPHEUS).decode(snac_sound(3), ANY)
        assert decoder.seen == [[(1, 3), (1, 6), (1, 12)]]

    def test_the_rate_must_be_said(self):
        """A decoder that does not say its rate needs the option, and is refused before anything starts."""
        with pytest.raises(OptionError, match="set the option sampling_rate, in Hz"):
            processor_of(Tones())
        assert processor_of(Tones(), sampling_rate=RATE).decode(frames(2), ANY).rate == RATE

    @pytest.mark.parametrize("rate", [0, -1, 24000.0, "24000", True])
    def test_a_rate_that_is_none_is_refused(self, rate):
        """sampling_rate counts samples."""
        with pytest.raises(OptionError, match="sampling_rate must be an integer of 1 or more"):
            CodecAudioProcessor(layout=FLAT, decoder=Tones(), sampling_rate=rate)

    def test_other_results_are_refused(self):
        """An error says what a decoder must make, and what it made."""
        decoder = Tones(RATE)
        decoder.decode = lambda codes: codes
        with pytest.raises(DecodeError, match=r"must make floating-point samples \[1, channels, samples\].*got int64"):
            processor_of(decoder).decode(frames(2), ANY)
