"""Fixtures: a tokenizer, and apps whose engine answers with what it is told to."""

from __future__ import annotations

import pytest
from token_models import DRAWING, PAINTER, SPEAKER


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


RATE = 16000
"""Said of the sounds of `speaking_server`, Hz."""


@pytest.fixture(scope="session")
def drawing_folder(tmp_path_factory):
    """A model that writes pictures of the size that its prompt names."""
    from token_models import IMAGE_LAYOUT, image_model

    layout = {**IMAGE_LAYOUT, "opened": True}
    return image_model(
        tmp_path_factory.mktemp("drawing"), layout=layout, prompt="<s>{prompt}<pad>{rows:3}x{columns:4}<boi>"
    )


@pytest.fixture(scope="session")
def drawing_server(drawing_folder):
    """Serves it."""
    from serving import served

    with served(drawing_folder, *DRAWING, *PAINTER) as server:
        yield server


@pytest.fixture(scope="module")
def drawing_client(drawing_server):
    """OpenAI's client of it."""
    with _client_of(drawing_server) as client:
        yield client


@pytest.fixture(scope="session")
def speaking_server(tmp_path_factory):
    """A model that speaks."""
    from serving import served
    from token_models import audio_model

    folder = audio_model(
        tmp_path_factory.mktemp("speaking"), sampling_rate=RATE, prompt="{voice:tara}: {input} {instructions}"
    )
    with served(folder, *DRAWING, *SPEAKER) as server:
        yield server


@pytest.fixture(scope="module")
def speaking_client(speaking_server):
    """OpenAI's client of it."""
    with _client_of(speaking_server) as client:
        yield client


@pytest.fixture
def leave(holds):
    """Give the file that lets a held answer go on, see drawing_tokens; it is absent before and after."""
    from drawing_tokens import LEAVE

    file = holds / LEAVE
    yield file
    file.unlink(missing_ok=True)


def _client_of(server):
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
