"""Fixtures: a tokenizer, and apps whose engine answers with what it is told to."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    """Of bytes, and the special tokens of token_models."""
    from token_service import tokenizer_in

    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def painter(byte_tokenizer):
    """Makes an app of a processor of pictures; gives OpenAI's client of it, and its engine."""
    from token_service import audio_processor, image_processor, openai_client, token_app

    def make(*args, tokenizer=byte_tokenizer, audio=False, engine=None, **layout):
        make_one = audio_processor if audio else image_processor
        name = "codec_audio" if audio else "vq_image"
        app, made = token_app({name: make_one(*args, **layout)}, tokenizer, **(engine or {}))
        return openai_client(app), made

    return make


FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--logits-processors")
DRAWING = (*FLAGS, "drawing_tokens:Drawing")
RATE = 16000
"""Said of the sounds of `speaking_server`, Hz."""


@pytest.fixture(scope="session")
def drawing_server(tmp_path_factory, nursery):
    """A model that writes pictures of the size that its prompt names."""
    from serving import served
    from token_models import IMAGE_LAYOUT, image_model

    layout = {**IMAGE_LAYOUT, "opened": True}
    folder = image_model(
        tmp_path_factory.mktemp("drawing"), layout=layout, prompt="<s>{prompt}<pad>{rows:3}x{columns:4}<boi>"
    )
    with served(folder, *DRAWING, "--served-model-name", "painter", nursery=nursery) as server:
        yield server


@pytest.fixture(scope="session")
def speaking_server(tmp_path_factory, nursery):
    """A model that speaks."""
    from serving import served
    from token_models import audio_model

    folder = audio_model(
        tmp_path_factory.mktemp("speaking"), sampling_rate=RATE, prompt="{voice:tara}: {input} {instructions}"
    )
    with served(folder, *DRAWING, "--served-model-name", "speaker", nursery=nursery) as server:
        yield server
