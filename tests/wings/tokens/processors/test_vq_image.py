from __future__ import annotations

import json
import shutil
from collections import OrderedDict

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens import VQImageProcessor
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout, parse

torch = pytest.importorskip("torch", reason="decoders are of torch")
pytestmark = pytest.mark.engine

ANY = OutputParams()
CODES = 64
EMU3 = TokenLayout(modality="image", first=100, size=CODES, row_end=90, begin=(80,), end=(81,))
JANUS = TokenLayout(modality="image", first=100, size=CODES, grid=(4, 4))
LAYOUTS = {"emu3": EMU3, "janus": JANUS, "whole_emu3": EMU3, "whole_janus": JANUS}


def medium(rows, columns=4, seed=0, **changes):
    """A picture's codes, drawn at random."""
    codes = np.random.default_rng(seed).integers(0, CODES, (rows, columns))
    return Medium(**{"start": 3, "stop": 9, "codes": (codes,), "complete": True, "grid": (4, columns), **changes})


def plain_pixels(name, folder, codes):
    """What the decoder of transformers makes of one picture's codes: float32 [channels, height, width]."""
    import transformers

    if name.startswith("whole"):
        kind = {"whole_emu3": "Emu3ForConditionalGeneration", "whole_janus": "JanusForConditionalGeneration"}[name]
        model = getattr(transformers, kind).from_pretrained(folder).model.vqmodel.eval()
    else:
        kind = {"emu3": "Emu3VQVAE", "janus": "JanusVQVAE"}[name]
        model = getattr(transformers, kind).from_pretrained(folder).eval()
    ids = torch.from_numpy(codes)[None]
    with torch.no_grad():
        return model.decode(ids if "emu3" in name else ids.flatten(1))[0].numpy()


def as_bytes(pixels, mean=0.5, std=0.5):
    """Pixels as bytes, by numpy: [height, width, channels]."""
    levels = np.rint((pixels.transpose(1, 2, 0) * np.float32(std) + np.float32(mean)) * np.float32(255))
    return levels.clip(0, 255).astype(np.uint8)


def processor_of(name, folder, **options):
    return VQImageProcessor.from_config({}, {"layout": LAYOUTS[name], "decoder": folder, **options})


def changed(folder, place, **entries):
    """A copy of a decoder's folder with another config.json."""
    copy = shutil.copytree(folder, place / "changed")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **entries}))
    return copy


class TestPictures:
    @pytest.mark.parametrize("name", LAYOUTS)
    def test_one_is_what_plain_transformers_decodes(self, decoder_folder, name):
        """The bytes are those of the decoder called alone on the same codes, bit for bit."""
        folder = decoder_folder(name)
        processor = processor_of(name, folder)
        for seed in range(3):
            one = medium(4, seed=seed)
            expected = as_bytes(plain_pixels(name, folder, one.codes[0]))
            assert len(np.unique(expected)) > 20, "a flat picture would show nothing"
            np.testing.assert_array_equal(processor.decode(one, ANY).array, expected)

    @pytest.mark.parametrize("name", ["emu3", "janus"])
    def test_a_batch_is_its_members_alone(self, decoder_folder, name):
        """Decoded at once, pictures come in their order and differ by one grey level at most."""
        processor = processor_of(name, decoder_folder(name))
        media = [medium(4, seed=seed) for seed in range(5)]
        for together, one in zip(processor.decode_batch(media), media, strict=True):
            alone = processor.decode(one, ANY).array.astype(int)
            assert np.abs(together.array - alone).max() <= 1
            assert together.array.base is None, "one picture must not keep the whole batch in memory"

    def test_any_grid_of_emu3(self, decoder_folder):
        """A decoder of any size takes what the rows say, and only equal grids go together."""
        folder = decoder_folder("emu3")
        processor = processor_of("emu3", folder)
        wide = medium(2, 7)
        expected = as_bytes(plain_pixels("emu3", folder, wide.codes[0]))
        assert expected.shape == (4, 14, 3)
        np.testing.assert_array_equal(processor.decode(wide, ANY).array, expected)
        assert processor.batch_key(wide) == processor.batch_key(medium(2, 7, seed=1))
        assert processor.batch_key(wide) != processor.batch_key(medium(7, 2))

    def test_tokens_become_a_picture(self, decoder_folder):
        """What the layout finds in a stream is decoded, and the output says which tokens it was made of."""
        folder = decoder_folder("emu3")
        codes = medium(3, 5).codes
        text, found = parse(EMU3, [7, 8, *EMU3.build(codes), 9])
        assert text == [7, 8, 9]
        output = processor_of("emu3", folder).decode(found[0], ANY)
        assert isinstance(output, ImageOutput)
        assert (output.partial, output.span) == (False, (2, 2 + EMU3.tokens_of(3, 5)))
        np.testing.assert_array_equal(output.array, as_bytes(plain_pixels("emu3", folder, codes[0])))

    def test_a_layout_may_be_a_mapping(self, decoder_folder):
        """A layout as config.json has it is as good as one made in Python."""
        layout = {"modality": "image", "first": 100, "size": CODES, "grid": [4, 4]}
        folder = decoder_folder("janus")
        assert processor_of("janus", folder, layout=layout).layout == JANUS

    @pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
    def test_another_dtype(self, decoder_folder, dtype):
        """The decoder runs in the dtype asked for."""
        folder = decoder_folder("janus")
        processor, one = processor_of("janus", folder, dtype=dtype), medium(4)
        near = processor.decode(one, ANY).array.astype(int) - processor_of("janus", folder).decode(one, ANY).array
        assert np.abs(near).max() <= (1 if dtype == "float64" else 12)


class TestPartialPictures:
    def test_rows_that_came_are_decoded(self, decoder_folder):
        """A decoder of any size decodes the rows that there are."""
        folder = decoder_folder("emu3")
        half = medium(2, complete=False)
        output = processor_of("emu3", folder).decode(half, ANY)
        assert (output.partial, output.span) == (True, (3, 9))
        np.testing.assert_array_equal(output.array, as_bytes(plain_pixels("emu3", folder, half.codes[0])))

    def test_a_decoder_of_one_size_is_filled_up(self, decoder_folder):
        """Missing cells are code 0, and the picture is cut to the rows that came."""
        folder = decoder_folder("janus")
        half = medium(3, complete=False)
        output = processor_of("janus", folder).decode(half, ANY)
        filled = np.vstack([half.codes[0], np.zeros((1, 4), np.int64)])
        assert output.partial
        assert output.array.shape == (6, 8, 3)
        np.testing.assert_array_equal(output.array, as_bytes(plain_pixels("janus", folder, filled))[:6])

    def test_whole_and_partial_ones_share_a_batch(self, decoder_folder):
        """For a decoder of one size, pictures of any rows are decoded at once, each cut to its own."""
        processor = processor_of("janus", decoder_folder("janus"))
        media = [medium(4), medium(1, seed=1, complete=False), medium(3, seed=2, complete=False)]
        assert len({processor.batch_key(one) for one in media}) == 1
        outputs = processor.decode_batch(media)
        assert [output.array.shape[0] for output in outputs] == [8, 2, 6]
        assert [output.partial for output in outputs] == [False, True, True]
        for output, one in zip(outputs, media, strict=True):
            assert np.abs(output.array - processor.decode(one, ANY).array.astype(int)).max() <= 1


class TestGreyLevels:
    @pytest.mark.parametrize("name", ["emu3", "janus"])
    def test_the_models_own_image_processor_agrees(self, decoder_folder, tmp_path, name):
        """Beside a preprocessor_config.json the picture is that of its ``postprocess``, which rounds down."""
        from transformers import Emu3ImageProcessor, JanusImageProcessorPil

        mean, std = [0.4, 0.5, 0.6], [0.3, 0.5, 0.7]
        own = {"emu3": Emu3ImageProcessor, "janus": JanusImageProcessorPil}[name](image_mean=mean, image_std=std)
        folder = shutil.copytree(decoder_folder(name), tmp_path / name)
        own.save_pretrained(folder)
        one = medium(4)
        pixels = plain_pixels(name, folder, one.codes[0])
        theirs = own.postprocess([pixels], return_tensors="PIL.Image.Image")["pixel_values"][0]
        ours = processor_of(name, folder).decode(one, ANY).array
        np.testing.assert_array_equal(ours, as_bytes(pixels, mean, std))
        above = ours.astype(int) - np.asarray(theirs)
        assert set(np.unique(above)) <= {0, 1}
        assert np.abs(ours.astype(int) - as_bytes(pixels)).max() > 5, "the default would be another picture"

    @pytest.mark.parametrize(
        ("options", "mean", "std"),
        [
            ({}, 0.1, 0.2),
            ({"mean": 0.4, "std": 0.3}, 0.4, 0.3),
            ({"mean": [0.4, 0.5, 0.6], "std": [0.3, 0.5, 0.7]}, [0.4, 0.5, 0.6], [0.3, 0.5, 0.7]),
            ({"value_range": [-1, 1]}, 0.5, 0.5),
            ({"value_range": (0, 1)}, 0.0, 1.0),
        ],
    )
    def test_options_win_over_the_folder(self, decoder_folder, tmp_path, options, mean, std):
        """What an option says counts, then preprocessor_config.json, then 0.5."""
        folder = shutil.copytree(decoder_folder("janus"), tmp_path / "janus")
        (folder / "preprocessor_config.json").write_text('{"image_mean": 0.1, "image_std": [0.2, 0.2, 0.2]}')
        expected = as_bytes(plain_pixels("janus", folder, medium(4).codes[0]), mean, std).astype(int)
        ours = processor_of("janus", folder, **options).decode(medium(4), ANY).array
        assert np.abs(ours - expected).max() == 0

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"mean": 0.5}, "mean and std belong together"),
            ({"std": 0.5}, "mean and std belong together"),
            ({"mean": 0.5, "std": 0}, "std must be above 0, got 0"),
            ({"mean": "half", "std": 0.5}, "mean must be a finite number, or one per channel, got 'half'"),
            ({"mean": [], "std": 0.5}, "mean must be a finite number"),
            ({"mean": True, "std": 0.5}, "mean must be a finite number"),
            ({"value_range": (1, 0)}, "value_range must be two finite numbers, the lower first"),
            ({"value_range": 1}, "value_range must be 2 finite numbers, got 1"),
            ({"value_range": (0, float("inf"))}, "value_range must be 2 finite numbers"),
            ({"value_range": (0, 1), "mean": 0.5, "std": 0.5}, "value_range cannot be combined with mean or std"),
        ],
    )
    def test_contradictions_are_refused(self, options, says):
        """Options that cannot be honoured are refused when the processor is made."""
        with pytest.raises(OptionError, match=says.replace("(", r"\(")):
            VQImageProcessor(layout=JANUS, decoder="anywhere", **options)

    @pytest.mark.parametrize(("option", "missing"), [({"mean": 0.0}, "std"), ({"std": 0.5}, "mean")])
    def test_the_error_names_the_missing_option(self, option, missing):
        """A mean of 0 is a mean: the option that is missing is the standard deviation."""
        with pytest.raises(OptionError) as raised:
            VQImageProcessor(layout=JANUS, decoder="anywhere", **option)
        assert raised.value.param == missing

    def test_a_whole_models_processor(self, decoder_folder, tmp_path):
        """As transformers saves it today: the image processor is a table of its file, and wins over one of its own."""
        from transformers import Emu3ImageProcessor, Emu3Processor, GPT2TokenizerFast

        folder = shutil.copytree(decoder_folder("emu3"), tmp_path / "emu3")
        letters = {"a": 0, "<boi>": 1, "<eoi>": 2, "<img>": 3, "<wrap>": 4, "<eof>": 5}
        markers = {"image_token": "<img>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
        markers |= {"image_wrapper_token": "<wrap>", "eof_token": "<eof>", "bos_token": "a", "eos_token": "a"}
        tokenizer = GPT2TokenizerFast(vocab=letters, merges=[], **markers)
        Emu3Processor(Emu3ImageProcessor(), tokenizer).save_pretrained(folder)
        assert not (folder / "preprocessor_config.json").exists()
        own = Emu3ImageProcessor.from_pretrained(folder)
        assert own.image_mean[0] < 0.49
        (folder / "preprocessor_config.json").write_text('{"image_mean": 0.1, "image_std": 0.2}')
        expected = as_bytes(plain_pixels("emu3", folder, medium(4).codes[0]), own.image_mean, own.image_std)
        np.testing.assert_array_equal(processor_of("emu3", folder).decode(medium(4), ANY).array, expected)
        (folder / "processor_config.json").write_text('{"image_processor": 3}')
        with pytest.raises(OptionError, match=r"image_processor of .*processor_config.json must be a table, got 3"):
            processor_of("emu3", folder)

    def test_a_damaged_file_is_named(self, decoder_folder, tmp_path):
        """An error about the folder's own normalisation names the file."""
        folder = shutil.copytree(decoder_folder("janus"), tmp_path / "janus")
        (folder / "preprocessor_config.json").write_text('{"image_mean": "no", "image_std": 1}')
        with pytest.raises(OptionError, match=r"image_mean of .*preprocessor_config.json must be"):
            processor_of("janus", folder)


class Painter(torch.nn.Module):
    """A decoder of one's own: a cell is a pixel of its code."""

    def __init__(self, channels=3, wrap=None):
        super().__init__()
        self.channels = channels
        self.wrap = wrap or (lambda pixels: pixels)
        self.seen = []

    def decode(self, codes):
        self.seen.append((codes.shape, codes.dtype, torch.is_inference_mode_enabled(), self.training))
        return self.wrap((codes / 127.5 - 1)[:, None].expand(-1, self.channels, -1, -1))


class TestOwnDecoders:
    @pytest.mark.parametrize(("channels", "shape"), [(1, (2, 5)), (3, (2, 5, 3)), (4, (2, 5, 4))])
    def test_any_module_that_decodes(self, channels, shape):
        """A module handed in is called with [n, rows, columns] in inference mode, and may make grey, RGB and RGBA."""
        module = Painter(channels)
        processor = VQImageProcessor(layout=EMU3, decoder=module)
        media = [medium(2, 5, seed=seed) for seed in range(3)]
        for output, one in zip(processor.decode_batch(media), media, strict=True):
            assert output.array.shape == shape
            np.testing.assert_array_equal(output.array.reshape(2, 5, -1)[:, :, 0], one.codes[0])
        assert module.seen == [((3, 2, 5), torch.int64, True, False)]

    @pytest.mark.parametrize("wrap", [lambda p: (p, 1), lambda p: [p], lambda p: OrderedDict(sample=p, more=1)])
    def test_results_may_be_wrapped(self, wrap):
        """A tuple, a list or an output of transformers and diffusers is opened."""
        output = VQImageProcessor(layout=EMU3, decoder=Painter(wrap=wrap)).decode(medium(2, 5), ANY)
        np.testing.assert_array_equal(output.array[:, :, 1], medium(2, 5).codes[0])

    @pytest.mark.parametrize(
        ("wrap", "says"),
        [
            (lambda p: p.numpy(), "must return a tensor, or a mapping or tuple that begins with one, got ndarray"),
            (lambda p: {}, "got dict"),
            (lambda p: p[0], r"must make floating-point pixels \[1, 1, 3 or 4 channels, height, width\], got float32"),
            (lambda p: p[:, :2], r"got float32 \[1, 2, 2, 5\]"),
            (lambda p: p.repeat(2, 1, 1, 1), r"got float32 \[2, 3, 2, 5\]"),
            (lambda p: p.to(torch.uint8), r"got uint8 \[1, 3, 2, 5\]"),
        ],
    )
    def test_other_results_are_refused(self, wrap, says):
        """An error says what a decoder must make, and what it made."""
        with pytest.raises(DecodeError, match=says):
            VQImageProcessor(layout=EMU3, decoder=Painter(wrap=wrap)).decode(medium(2, 5), ANY)

    @pytest.mark.parametrize(
        ("value", "byte"), [(-1.5, 0), (1.5, 255), (float("inf"), 255), (-float("inf"), 0), (float("nan"), 0)]
    )
    def test_pixels_out_of_range_are_black_or_white(self, value, byte):
        """Pixels are clamped; what is no number is black."""
        painter = Painter(wrap=lambda pixels: torch.full_like(pixels, value))
        output = VQImageProcessor(layout=EMU3, decoder=painter).decode(medium(2, 5), ANY)
        assert np.unique(output.array).tolist() == [byte]

    def test_means_of_other_channels_are_refused(self):
        """Three means do not fit four channels."""
        processor = VQImageProcessor(layout=EMU3, decoder=Painter(4), mean=[0.5] * 3, std=[0.5] * 3)
        with pytest.raises(DecodeError, match="made 4 channels, but mean and std have 3 and 3 values"):
            processor.decode(medium(2, 5), ANY)

    def test_a_model_of_transformers_is_called_as_its_kind_is(self, decoder_folder):
        """A decoder that was loaded in Python is checked and called like one of a folder."""
        from transformers import JanusVQVAE

        folder = decoder_folder("janus")
        processor = processor_of("janus", JanusVQVAE.from_pretrained(folder))
        expected = processor_of("janus", folder).decode(medium(2, complete=False), ANY).array
        np.testing.assert_array_equal(processor.decode(medium(2, complete=False), ANY).array, expected)


class TestMisfits:
    def test_the_number_of_codes_must_agree(self, decoder_folder):
        """Another codebook size is refused before anything starts; both are named."""
        layout = TokenLayout(modality="image", first=100, size=32, row_end=90)
        with pytest.raises(
            OptionError, match=r"layout has 1 codebook of 32 codes, but decoder .*emu3 \(emu3_vqgan\) has 1"
        ):
            processor_of("emu3", decoder_folder("emu3"), layout=layout)

    def test_the_number_of_codebooks_must_agree(self, decoder_folder):
        """A picture of two codebooks is none of Emu3's."""
        layout = TokenLayout(modality="image", first=100, size=CODES, codebooks=2, row_end=90)
        with pytest.raises(
            OptionError, match=r"layout has 2 codebooks of 64 codes, but decoder .* has 1 of 64; correct"
        ):
            processor_of("emu3", decoder_folder("emu3"), layout=layout)

    @pytest.mark.parametrize(
        ("layout", "given"),
        [
            (TokenLayout(modality="image", first=100, size=CODES, grid=(4, 5)), r"grid \[4, 5\]"),
            (TokenLayout(modality="image", first=100, size=CODES, row_end=90), "no fixed grid"),
        ],
    )
    @pytest.mark.parametrize("name", ["janus", "whole_janus"])
    def test_the_grid_must_be_that_of_the_decoder(self, decoder_folder, layout, given, name):
        """A decoder of one size takes no other grid."""
        with pytest.raises(OptionError, match=rf"layout has {given}, but decoder .* set grid=\[4, 4\]"):
            processor_of("janus", decoder_folder(name), layout=layout)

    def test_the_config_says_the_grid(self, decoder_folder, tmp_path):
        """The grid is read from config.json, not from the weights."""
        with pytest.raises(OptionError, match=r"decodes only 6 rows of 6 codes"):
            processor_of("janus", changed(decoder_folder("janus"), tmp_path, num_patches=6))

    def test_a_processor_made_without_a_config_is_checked_when_loaded(self, decoder_folder):
        """What is made in Python is checked too, at the latest when the weights are wanted."""
        layout = TokenLayout(modality="image", first=100, size=CODES, grid=(5, 5))
        processor = VQImageProcessor(layout=layout, decoder=str(decoder_folder("janus")))
        with pytest.raises(OptionError, match=r"layout has grid \[5, 5\]"):
            processor.load()

    def test_a_codec_makes_no_pictures(self, decoder_folder):
        """A decoder of sounds is refused with the processor that takes it."""
        with pytest.raises(OptionError, match=r"\(mimi\) decodes audio.* set output_processor='codec_audio'"):
            processor_of("emu3", decoder_folder("mimi"))

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"decoder": "x"}, "needs the option layout"),
            ({"layout": JANUS}, "needs the option decoder"),
            ({"layout": 5, "decoder": "x"}, "layout must be a table"),
            ({"layout": {"modality": "image", "frist": 1}, "decoder": "x"}, "frist"),
            (
                {"layout": {"modality": "audio", "first": 5, "size": 9}, "decoder": "x"},
                "layout is for audio, but output processor 'vq_image' makes image",
            ),
        ],
    )
    def test_what_is_missing_or_malformed_is_named(self, options, says):
        """Layout and decoder must both be given."""
        with pytest.raises(OptionError, match=says):
            VQImageProcessor.from_config({}, options)
