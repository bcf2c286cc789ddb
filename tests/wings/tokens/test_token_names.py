"""The names that users import of the wing of tokens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vllm_mmout.processors import OutputProcessor
from vllm_mmout.wings import tokens


def test_processors_of_tokens_are_made_without_torch():
    """In an interpreter that has neither torch nor vLLM, every processor can be imported and made."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['vllm'] = None\n"
        "from vllm_mmout.wings.tokens import CodecAudioProcessor, TokenProcessor, VQImageProcessor\n"
        "layout = {'modality': 'audio', 'first': 5, 'size': 9}\n"
        "picture = {'modality': 'image', 'first': 5, 'size': 9, 'grid': [2, 2]}\n"
        "TokenProcessor(layout=layout)\n"
        "CodecAudioProcessor(layout=layout, decoder='codec')\n"
        "VQImageProcessor(layout=picture, decoder='codec')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    """What the wing lists can be imported, and tab completion shows it."""
    assert {name for name in tokens.__all__ if getattr(tokens, name, None) is not None} == set(tokens.__all__)
    assert set(tokens.__all__) <= set(dir(tokens))


@pytest.mark.parametrize(
    ("processor", "name", "modality"),
    [(tokens.VQImageProcessor, "vq_image", "image"), (tokens.CodecAudioProcessor, "codec_audio", "audio")],
)
def test_processors_say_their_name_and_modality(processor, name, modality):
    """Name and kind of result stand on the class, where the registry reads them."""
    assert issubclass(processor, OutputProcessor)
    assert (processor.name, processor.modality) == (name, modality)
