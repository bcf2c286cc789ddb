"""Sounds with words among their codes, as OuteTTS writes them, on the real engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_folders import kept_engine
from scripted_tokens import scripted, up_to_the_stop
from token_models import AUDIO_CODES, AUDIO_LAYOUT, BEGIN, END, ENGINE, audio_model
from token_streams import SOUND, in_one_step, of_text

pytestmark = pytest.mark.engine

CODES = tuple(np.random.default_rng(7).integers(0, AUDIO_CODES, (4, 6)))


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """The engine of a model that says which word it speaks."""
    layout = {**AUDIO_LAYOUT, "text_inside": True}
    return kept_engine(audio_model(tmp_path_factory.mktemp("audio") / "speaker", layout=layout), **ENGINE)


def spoken(*words):
    """The tokens of a sound of two frames a word."""
    codes = SOUND.build(CODES)[1:-1]
    tokens = [BEGIN]
    for number, word in enumerate(words):
        tokens += [*of_text(word), *codes[number * 8 : number * 8 + 8]]
    return tokens


def decoded(llm, frames):
    """Mimi's decoder through plain transformers, on the first frames."""
    from transformers import MimiModel

    model = MimiModel.from_pretrained(f"{llm.llm_engine.vllm_config.model_config.model}/decoder").eval()
    with torch.inference_mode():
        return model.decode(torch.from_numpy(np.stack(CODES)[None, :, :frames])).audio_values[0].numpy()


def test_a_sound_is_one_whatever_words_are_in_it(speaker):
    """The words are the text, in which nothing is missing; the sound is that of all codes, sample by sample."""
    tokens = [*of_text("says: "), *spoken("thrée ", "short ", "words"), END, *of_text(".")]
    (answer,) = speaker.generate("speak", scripted(tokens), use_tqdm=False)[0].outputs
    assert answer.text == "says: thrée short words."
    (sound,) = answer.multimodal
    assert (sound.span, sound.partial) == ((6, len(tokens) - 1), False)
    np.testing.assert_array_equal(sound.samples, decoded(speaker, 6))


@up_to_the_stop
def test_a_stop_string_inside_a_sound(speaker, monkeypatch):
    """What was spoken before it is delivered, also where the codes behind it came in the same step."""
    tokens = [*spoken("one ", "two ", "three "), END]
    last = len(spoken("one ", "two "))
    for together in (False, True):
        if together:
            in_one_step(monkeypatch, speaker, tokens)
        sampling = scripted(tokens[:1] if together else tokens, stop=["three"])
        (answer,) = speaker.generate("speak", sampling, use_tqdm=False)[0].outputs
        assert (answer.text, answer.stop_reason, len(answer.token_ids)) == ("one two ", "three", last + len("three"))
        (sound,) = answer.multimodal
        assert (sound.span, sound.partial) == ((0, last), True)
        np.testing.assert_array_equal(sound.samples, decoded(speaker, 4))
