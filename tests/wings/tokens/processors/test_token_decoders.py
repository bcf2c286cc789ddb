from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vllm_mmout.errors import ModelError, OptionError, RegistrationError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens import CodecAudioProcessor, TokenProcessor, VQImageProcessor
from vllm_mmout.wings.tokens.decoders.lookup import KINDS
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout

torch = pytest.importorskip("torch", reason="decoders are of torch")
pytestmark = pytest.mark.engine

ANY = OutputParams()
SOUNDS = TokenLayout(modality="audio", first=100, size=32, codebooks=4)
PICTURES = TokenLayout(modality="image", first=100, size=64, grid=(4, 4))
LAYOUTS = {
    "xcodec2": TokenLayout(modality="audio", first=100, size=32),
    "emu3": PICTURES,
    "janus": PICTURES,
    "whole_emu3": PICTURES,
    "whole_janus": PICTURES,
}
DECODERS = ["emu3", "janus", "mimi", "dac", "encodec", "xcodec", "xcodec2"]


def processor_of(decoder, layout=SOUNDS, config=None, **options):
    kind = CodecAudioProcessor if layout.modality == "audio" else VQImageProcessor
    return kind.from_config(config or {}, {"layout": layout, "decoder": decoder, **options})


def medium(seed=0):
    draw = np.random.default_rng(seed)
    return Medium(0, 24, tuple(draw.integers(0, 32, 6) for _ in range(4)), complete=True)


def copied(folder, place, **entries):
    """A copy of a decoder's folder with entries of config.json changed; None takes one out."""
    copy = shutil.copytree(folder, place / "copy")
    config = {**json.loads((copy / "config.json").read_text()), **entries}
    (copy / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return copy


def rewritten(folder, change):
    """A folder whose weights are what ``change`` makes of them."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


class TestFolders:
    def test_a_missing_folder_is_named(self, tmp_path):
        """Nothing is downloaded: a folder that is not there is an error that says so."""
        with pytest.raises(
            OptionError, match=r"decoder folder .*/absent does not exist; decoders are never downloaded"
        ):
            processor_of(tmp_path / "absent")

    def test_the_name_of_a_repository_is_not_fetched(self, tmp_path, monkeypatch):
        """What could be a name on the hub is a folder that is not there."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(OptionError, match=r"kyutai/mimi does not exist"):
            processor_of("kyutai/mimi", config={"_name_or_path": "somebody/speech"})

    def test_relative_folders_lie_in_the_models(self, decoder_folder, tmp_path, monkeypatch):
        """A relative decoder is looked for in the model's folder; without one, in the current folder."""
        shutil.copytree(decoder_folder("mimi"), tmp_path / "model" / "codec")
        beside = processor_of("codec", config={"_name_or_path": str(tmp_path / "model")})
        monkeypatch.chdir(tmp_path / "model")
        here = processor_of("codec", config={"_name_or_path": "somebody/speech"})
        np.testing.assert_array_equal(beside.decode(medium(), ANY).samples, here.decode(medium(), ANY).samples)

    def test_an_absolute_folder_is_taken_as_it_is(self, decoder_folder, tmp_path):
        """The model's folder does not matter then."""
        folder = decoder_folder("mimi")
        assert processor_of(str(folder), config={"_name_or_path": str(tmp_path)}).decoder_folder == folder

    def test_a_folder_without_config_is_refused(self, tmp_path):
        """Without config.json nothing is known of a decoder."""
        with pytest.raises(OptionError, match=r"has no config.json; save the decoder there with save_pretrained, or"):
            processor_of(tmp_path)

    @pytest.mark.parametrize(("text", "says"), [("{", "cannot be read"), ("[1]", "must hold a table, got list")])
    def test_a_damaged_config_is_named(self, tmp_path, text, says):
        """A config.json that is none is an error that names the file."""
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(OptionError, match=rf"config.json {says}"):
            processor_of(tmp_path)

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ('{"model_type": "llama"}', "has model_type 'llama'"),
            ("{}", "has no model_type"),
            ('{"model_type": 5}', "no"),
        ],
    )
    def test_an_unknown_kind_lists_the_known_ones(self, tmp_path, config, says):
        """A decoder of another kind needs its class named."""
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(OptionError, match=says) as caught:
            processor_of(tmp_path)
        assert all(kind in str(caught.value) for kind in (*KINDS, "snac", "decoder_class="))

    @pytest.mark.parametrize(
        "entries", [{"codebook_size": "many"}, {"num_quantizers": 1}, {"sampling_rate": [1]}], ids=str
    )
    def test_a_config_that_transformers_refuses_is_named(self, decoder_folder, tmp_path, entries):
        """What the class of the config does not take is an error of the decoder's folder."""
        with pytest.raises(OptionError, match=r"config.json of decoder .*copy is not a mimi config: "):
            processor_of(copied(decoder_folder("mimi"), tmp_path, **entries))

    @pytest.mark.parametrize("name", ["encodec", "xcodec"])
    def test_a_config_without_bandwidths_is_named(self, decoder_folder, tmp_path, name):
        """The number of codebooks follows from the bandwidths: without any there is none."""
        with pytest.raises(OptionError, match=rf"is not a {name} config: |has 0 of 32"):
            processor_of(copied(decoder_folder(name), tmp_path, target_bandwidths=[0.0]))


class TestWeights:
    @pytest.mark.parametrize("name", DECODERS)
    def test_no_weights_are_read_at_the_start(self, decoder_folder, tmp_path, name):
        """A processor is made of the config alone: weights that are none come to light when they are loaded."""
        folder = copied(decoder_folder(name), tmp_path)
        (folder / "model.safetensors").write_bytes(b"no weights")
        processor = processor_of(folder, LAYOUTS.get(name, SOUNDS))
        with pytest.raises(ModelError, match=rf"weights of decoder {folder} \(.*\) cannot be loaded: .*download it"):
            processor.load()

    @pytest.mark.parametrize("name", [*DECODERS, "whole_emu3", "whole_janus"])
    def test_a_folder_without_weights_is_refused_at_the_start(self, decoder_folder, tmp_path, name):
        """That there is a file of weights is seen before anything starts."""
        folder = copied(decoder_folder(name), tmp_path)
        (folder / "model.safetensors").unlink()
        with pytest.raises(OptionError, match=r"has no weights \(\*.safetensors or \*.bin\); save them"):
            processor_of(folder, LAYOUTS.get(name, SOUNDS))

    @pytest.mark.parametrize("name", [*DECODERS, "whole_emu3", "whole_janus"])
    def test_a_decoder_that_lacks_weights_is_refused(self, decoder_folder, tmp_path, name):
        """What transformers would fill with random numbers is an error that names it."""

        def halved(weights):
            for key in [key for key in weights if "decoder" in key][:8]:
                del weights[key]

        folder = rewritten(copied(decoder_folder(name), tmp_path), halved)
        processor = processor_of(folder, LAYOUTS.get(name, SOUNDS))
        with pytest.raises(ModelError, match=r"lacks weights: .*decoder.* and [0-9]+ more; save them from"):
            processor.load()

    def test_weights_of_another_size_are_refused(self, decoder_folder, tmp_path):
        """A config that does not belong to the weights is found out when they are loaded."""
        folder = copied(decoder_folder("dac"), tmp_path, decoder_hidden_size=8)
        with pytest.raises(ModelError, match=r"decoder .*copy \(dac\) cannot be loaded"):
            processor_of(folder).load()

    def test_weights_are_loaded_once(self, decoder_folder, monkeypatch):
        """However many threads decode first, one loads, and all wait for it."""
        from transformers import MimiModel

        processor, loads = processor_of(decoder_folder("mimi")), []
        original = MimiModel.from_pretrained

        def counted(*args, **kwargs):
            loads.append(threading.get_ident())
            return original(*args, **kwargs)

        monkeypatch.setattr(MimiModel, "from_pretrained", counted)
        with ThreadPoolExecutor(6) as pool:
            sounds = list(pool.map(lambda _: processor.decode(medium(), ANY).samples, range(6)))
        processor.load()
        assert len(loads) == 1
        assert all(np.array_equal(sounds[0], other) for other in sounds)

    def test_a_failed_load_can_be_repeated(self, decoder_folder, tmp_path):
        """An error leaves nothing half loaded behind."""
        folder = copied(decoder_folder("mimi"), tmp_path)
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(b"")
        processor = processor_of(folder)
        with pytest.raises(ModelError):
            processor.load()
        (folder / "model.safetensors").write_bytes(whole)
        assert processor.decode(medium(), ANY).rate == 800

    def test_the_network_is_left_alone(self, decoder_folder, monkeypatch):
        """Making and loading decoders opens no connection, also where nothing says that the machine is offline."""
        import huggingface_hub

        def refuse(*_):
            pytest.fail("a connection")

        folders = [(name, decoder_folder(name)) for name in DECODERS]
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        assert not huggingface_hub.is_offline_mode()
        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        for name, folder in folders:
            layout = LAYOUTS.get(name, SOUNDS)
            kind = VQImageProcessor if layout.modality == "image" else CodecAudioProcessor
            kind.from_config({}, {"layout": layout, "decoder": str(folder)}).load()


class TestPlacing:
    def test_threads_hold_while_the_decoder_runs(self, monkeypatch):
        """The decoder has its own number of threads, and afterwards torch has the old one, also after an error."""
        # vLLM's CPU worker, where a test before had one in this process, has replaced the public one for good
        monkeypatch.setattr(torch, "set_num_threads", torch._C.set_num_threads)

        class Counting:
            sampling_rate = 800

            def decode(self, codes):
                seen.append(torch.get_num_threads())
                if len(seen) == 2:
                    raise RuntimeError("the second fails")
                return torch.zeros(1, 5)

        seen, before = [], torch.get_num_threads()
        own = before + 1
        processor = processor_of(Counting(), threads=own)
        processor.decode(medium(), ANY)
        with pytest.raises(RuntimeError, match="the second fails"):
            processor.decode(medium(), ANY)
        assert (seen, torch.get_num_threads()) == ([own, own], before)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"device": "gpu"}, 'device must be "cpu", "cuda" or "cuda:0", got \'gpu\''),
            ({"dtype": "int8"}, "dtype must be one of float32, float16, bfloat16, float64, got 'int8'"),
            ({"threads": 0}, "threads must be an integer of 1 or more, got 0"),
            ({"max_batch": 0}, "max_batch must be an integer of 1 or more, got 0"),
            ({"batch_wait_ms": -1}, "batch_wait_ms must be a number of 0 or more, got -1"),
            ({"batch_wait_ms": float("nan")}, "batch_wait_ms must be a number of 0 or more, got nan"),
        ],
    )
    def test_malformed_options_are_refused_at_the_start(self, decoder_folder, options, says):
        """What cannot be honoured is an error before anything starts."""
        with pytest.raises(OptionError) as caught:
            processor_of(decoder_folder("mimi"), **options)
        assert says in str(caught.value)

    def test_a_device_that_is_not_there_is_named(self, decoder_folder):
        """Whether there is such a device shows when the decoder is loaded."""
        processor = processor_of(decoder_folder("mimi"), device="cuda:99")
        with pytest.raises(OptionError, match=r"cannot be moved to device 'cuda:99': .*; choose another device"):
            processor.load()

    def test_dtypes_reach_the_weights(self, decoder_folder):
        """The decoder computes in the dtype asked for; the sound is float32 all the same."""
        folder = decoder_folder("dac")
        exact = processor_of(folder, dtype="float64").decode(medium(), ANY).samples
        coarse = processor_of(folder, dtype="bfloat16").decode(medium(), ANY).samples
        plain = processor_of(folder).decode(medium(), ANY).samples
        assert coarse.dtype == np.float32
        np.testing.assert_allclose(exact, plain, atol=1e-5)
        assert 1e-5 < np.abs(coarse - plain).max() < 0.1

    def test_a_folder_in_another_dtype_is_loaded_in_float32(self, decoder_folder, tmp_path):
        """Without the option `dtype` the weights are float32, whatever the folder holds."""
        from transformers import DacModel

        folder = tmp_path / "dac"
        DacModel.from_pretrained(decoder_folder("dac"), dtype=torch.bfloat16).save_pretrained(folder)
        plain, exact, coarse = (
            processor_of(folder, **options).decode(medium(), ANY).samples
            for options in ({}, {"dtype": "float32"}, {"dtype": "bfloat16"})
        )
        np.testing.assert_array_equal(plain, exact)
        assert np.abs(coarse - plain).max() > 1e-5

    def test_a_module_that_was_handed_in_stays_as_it_is(self, decoder_folder):
        """Only options move a module or change its numbers; it is put into evaluation."""
        from transformers import DacModel

        model = DacModel.from_pretrained(decoder_folder("dac"), dtype=torch.float64).train()
        processor_of(model).load()
        assert (model.dtype, model.training) == (torch.float64, False)
        processor_of(model, dtype="float32").load()
        assert model.dtype == torch.float32

    def test_numbers_for_the_engine(self):
        """The engine reads batch size and waiting time off the processor."""
        processor = CodecAudioProcessor(layout=SOUNDS, decoder="x", max_batch=3, batch_wait_ms=20, threads=2)
        assert (processor.max_batch, processor.batch_wait_s, processor.threads) == (3, 0.02, 2)


NAMED = """
import torch

class Bent:
    def __init__(self, folder):
        self.folder = folder
    @classmethod
    def from_pretrained(cls, folder):
        if folder.endswith("broken"):
            raise KeyError("no weights")
        return cls(folder)
    def decode(self, codes):
        return codes[:, 0].float() / 64

class Mute:
    @classmethod
    def from_pretrained(cls, folder):
        return cls()
"""


class TestNamedClasses:
    @pytest.fixture(autouse=True)
    def _module(self, tmp_path, monkeypatch):
        (tmp_path / "bent_decoders.py").write_text(NAMED)
        monkeypatch.syspath_prepend(tmp_path)
        yield
        sys.modules.pop("bent_decoders", None)

    def test_a_class_reads_the_folder(self, tmp_path):
        """A class with from_pretrained and decode serves; the folder's config.json may say the rate."""
        (tmp_path / "config.json").write_text('{"sample_rate": 12000}')
        output = processor_of(tmp_path, decoder_class="bent_decoders:Bent").decode(medium(), ANY)
        assert output.rate == 12000
        np.testing.assert_array_equal(output.samples[0] * 64, medium().codes[0])

    def test_a_named_class_wins_over_the_kind(self, decoder_folder):
        """decoder_class is used also where the folder would be known."""
        from_kind = processor_of(decoder_folder("mimi")).decode(medium(), ANY)
        named = processor_of(decoder_folder("mimi"), decoder_class="bent_decoders:Bent").decode(medium(), ANY)
        assert named.samples.shape != from_kind.samples.shape

    @pytest.mark.parametrize(
        ("path", "error", "says"),
        [
            ("bent_decoders.Bent", OptionError, 'must be "package.module:Class", got'),
            (5, OptionError, 'must be "package.module:Class", got 5'),
            ("bent_decoders:Absent", RegistrationError, "cannot import decoder class .* has no 'Absent'"),
            ("absent_decoders:Bent", RegistrationError, "cannot import decoder class"),
            ("bent_decoders:Mute", OptionError, "decoder class bent_decoders:Mute has no decode; it needs"),
        ],
    )
    def test_what_is_no_decoder_is_refused(self, tmp_path, path, error, says):
        """A class that is not there, or is none, is an error before anything starts."""
        with pytest.raises(error, match=says):
            processor_of(tmp_path, decoder_class=path, sampling_rate=800)

    def test_a_missing_folder_is_named(self, tmp_path):
        """A class cannot load what is not there."""
        with pytest.raises(OptionError, match="absent does not exist"):
            processor_of(tmp_path / "absent", decoder_class="bent_decoders:Bent")

    def test_a_class_that_raises_is_named(self, tmp_path):
        """What from_pretrained raises is the cause of an error that names class and folder."""
        (tmp_path / "broken").mkdir()
        processor = processor_of(tmp_path / "broken", decoder_class="bent_decoders:Bent", sampling_rate=800)
        with pytest.raises(ModelError, match=r"bent_decoders:Bent cannot load .*broken: KeyError") as caught:
            processor.load()
        assert isinstance(caught.value.__cause__, KeyError)

    def test_a_class_for_an_object_is_refused(self):
        """An object needs no class to load it."""
        with pytest.raises(OptionError, match="decoder is an object, so decoder_class is not used to load it"):
            processor_of(torch.nn.Identity(), decoder_class="bent_decoders:Bent")

    def test_what_cannot_decode_is_refused(self):
        """An object needs decode(codes)."""
        with pytest.raises(OptionError, match=r"must be a folder, or an object with decode\(codes\), got Identity"):
            processor_of(torch.nn.Identity())


class TestTokenProcessor:
    def test_a_subclass_needs_a_layout_and_decode_batch(self):
        """An author's processor has a layout on the class and decodes batches; one medium is a batch of one."""

        class Lengths(TokenProcessor):
            layout = SOUNDS

            def decode_batch(self, media):
                return [len(medium.codes[0]) for medium in media]

        processor = Lengths.from_config({}, {})
        processor.load()
        assert processor.decode(medium(), ANY) == 6
        assert (processor.layout, processor.max_batch, processor.threads) == (SOUNDS, 8, None)
        assert processor.batch_key(medium()) == processor.batch_key(medium(seed=1))

    def test_what_a_subclass_lacks_is_said(self):
        """Without a layout or decode_batch an error names what is missing."""
        with pytest.raises(OptionError, match="output processor 'TokenProcessor' needs the option layout"):
            TokenProcessor()
        with pytest.raises(NotImplementedError, match=r"TokenProcessor must define decode_batch\(media\)"):
            TokenProcessor(layout=SOUNDS).decode(medium(), ANY)
