"""Sounds, texts and videos as users have them, and which folders are left to vLLM."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import soxr
import torch
from model_folders import engine_here
from small_heads import VIT, head, saved

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError

pytestmark = pytest.mark.engine
NAMED = {"additional_config": {"mmout": {"output_processor": "transformers"}}}


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    """An engine of a small classifier of sounds, and transformers' own."""
    model, processor = head("ASTForAudioClassification")
    return engine_here(saved(tmp_path_factory.mktemp("ast"), model, processor)), model, processor


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """An engine of a small classifier of texts, which vLLM has too, and transformers' own."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwet\ndry")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"))
    torch.manual_seed(4)
    sizes = VIT | {"hidden_size": 32, "num_attention_heads": 1}  # vLLM's attention on a CPU has no smaller heads
    config = BertConfig(**sizes, vocab_size=7, num_labels=3, max_position_embeddings=16, initializer_range=0.5)
    model = BertForSequenceClassification(config).eval()
    return engine_here(saved(folder, model, tokenizer), **NAMED), model, tokenizer


def one(llm, data, **options):
    (result,) = llm.generate([data], OutputParams(**options), use_tqdm=False)
    return result.outputs


def scores(model, features):
    with torch.inference_mode():
        return model(**features).logits[0].softmax(0)


def test_a_sound_of_another_rate_is_resampled(listening, tmp_path):
    """A stereo file of 8 kHz is what transformers gives for its mean at 16 kHz."""
    llm, model, extractor = listening
    samples = np.random.default_rng(1).normal(0, 0.1, (4000, 2)).astype(np.float32)
    soundfile.write(tmp_path / "sound.wav", samples, 8000, subtype="FLOAT")
    heard = soxr.resample(samples.mean(axis=1), 8000, 16000)
    expected = scores(model, extractor(heard, sampling_rate=16000, return_tensors="pt"))
    for data in (tmp_path / "sound.wav", {"audio": samples.T, "sampling_rate": 8000}):
        found = {entry.id: entry.score for entry in one(llm, data).classes}
        assert [found[number] for number in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("rate", [np.int64(8000), np.uint16(8000), 8000.0, np.float32(8000), np.array(8000)[()]])
def test_a_rate_may_be_any_whole_number(listening, rate):
    """A rate of numpy, or a float without a fraction, is that of an int."""
    llm, _, _ = listening
    samples = np.random.default_rng(1).normal(0, 0.1, 4000).astype(np.float32)
    found = one(llm, {"audio": samples, "sampling_rate": rate}).classes
    assert found == one(llm, {"audio": samples.astype(">f4"), "sampling_rate": 8000}).classes


@pytest.mark.parametrize(
    ("sound", "said"),
    [
        (np.zeros(0, np.float32), "floating point"),
        (np.zeros(8, np.int16), "floating point"),
        (np.full(800, np.nan, np.float32), "NaN"),
        ({"audio": np.zeros(8, np.float32)}, "sampling_rate"),
        ({"audio": np.zeros(8, np.float32), "sampling_rate": 16000.5}, "whole number of Hz"),
        ({"audio": np.zeros(8, np.float32), "sampling_rate": np.True_}, "whole number of Hz"),
        (np.zeros((800, 2), np.float32), r"800 channels with 2 samples each.*\[channels, n\].*array.T"),
        (b"RIFFnothing", "cannot be decoded: Format not recognised; give a WAV"),
        ("no-such.wav", "no such file: 'no-such.wav'"),
        ("", "no such file"),
        (None, "the input is None"),
        ({}, "got nothing"),
    ],
)
def test_what_is_no_sound_is_refused(listening, sound, said):
    """With what to do; the next request is answered."""
    llm, _, _ = listening
    with pytest.raises(InputError, match=said):
        one(llm, sound)
    assert one(llm, np.ones(1600, np.float32)).classes


def test_a_sound_that_is_shorter_than_the_convolutions_is_refused(tmp_path):
    """Before it reaches the network; the shortest that fits is what transformers makes of it."""
    model, extractor = head("Wav2Vec2ForCTC")
    llm = engine_here(saved(tmp_path, model, extractor))
    with pytest.raises(InputError, match=r"has 19 samples at 16000 Hz, the model needs 20; .* \[channels, n\]"):
        one(llm, np.ones(19, np.float32))
    samples = np.random.default_rng(3).normal(0, 0.1, 40).astype(np.float32)
    with torch.inference_mode():
        expected = model(**extractor(samples, sampling_rate=16000, return_tensors="pt")).logits[0]
    np.testing.assert_allclose(one(llm, samples).array, expected, rtol=1e-5, atol=1e-5)


def test_a_text_and_a_pair_are_those_of_transformers(reading):
    """A dict reaches the mapper too; an empty text is its two marks, as for transformers."""
    llm, model, tokenizer = reading
    for data, texts in (("wet dry", ("wet dry",)), ({"text": "wet", "text_pair": "dry"}, ("wet", "dry")), ("", ("",))):
        expected = scores(model, tokenizer(*texts, return_tensors="pt"))
        found = {entry.id: entry.score for entry in one(llm, data).classes}
        assert [found[number] for number in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_texts_that_do_not_fit_are_refused(reading):
    """Too many tokens, no text at all, an option of rasters."""
    llm, _, _ = reading
    with pytest.raises(InputError, match="22 tokens, the model takes 16"):
        one(llm, "wet " * 20)
    with pytest.raises(InputError, match="takes a text"):
        one(llm, {"text": 5})
    with pytest.raises(OptionError, match="takes text"):
        one(llm, "wet", bands=[1])


def test_frames_of_a_longer_video_are_chosen_evenly(tmp_path):
    """As the pipeline of transformers chooses them."""
    model, processor = head("VideoMAEForVideoClassification")
    llm = engine_here(saved(tmp_path, model, processor))
    video = np.random.default_rng(2).integers(0, 256, (9, 40, 50, 3), np.uint8)
    chosen = [video[number] for number in np.linspace(0, 8, 4).astype(int)]
    expected = scores(model, processor(chosen, return_tensors="pt"))
    found = {entry.id: entry.score for entry in one(llm, video).classes}
    assert [found[number] for number in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)
    for wrong, why in ((np.zeros((8, 0, 4, 3), np.uint8), "a frame must be"), ("a.mp4", "a list of its own")):
        with pytest.raises(InputError, match=why):
            one(llm, wrong)


def test_a_folder_that_vllm_serves_is_left_to_it(reading, tmp_path):
    """Without the engine argument vLLM's own class classifies, also after ours has stood in its place.

    vLLM refuses `generate` of such a model; the error names the argument.
    """
    _, model, tokenizer = reading
    llm = engine_here(saved(tmp_path, model, tokenizer), dtype="float32", max_model_len=16, enforce_eager=True)
    (result,) = llm.classify(["wet dry"], use_tqdm=False)
    expected = scores(model, tokenizer("wet dry", return_tensors="pt"))
    assert result.outputs.probs == pytest.approx(expected.tolist(), abs=1e-4)
    with pytest.raises(OptionError, match=r'--additional-config .*"output_processor": "transformers"'):
        llm.generate(["wet dry"])
