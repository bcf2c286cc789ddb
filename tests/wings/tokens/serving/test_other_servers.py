"""``/v1/audio/speech`` on servers whose model does not speak: what they have instead."""

from __future__ import annotations

import pytest

openai = pytest.importorskip("openai")
pytest.importorskip("vllm", reason="the routes are vLLM's server's")

from text_service import text_app  # noqa: E402
from token_service import openai_client  # noqa: E402

from vllm_mmout.processors import OutputProcessor  # noqa: E402

pytestmark = pytest.mark.engine


def asked(app):
    """The error of a request for speech."""
    with openai_client(app) as client, pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="painter", voice="x", input="hello")
    assert caught.value.param == "model"
    return caught.value.message


def test_a_model_that_answers_in_one_forward():
    """It says what that gives, and where it is asked."""
    app = text_app()
    app.state.mmout.binding.processors["image"].modality = "image"
    assert "the model 'painter' answers with image, not with text; use /v1/images/edits" in asked(app)


def test_a_processor_without_a_modality():
    """Its class may return sounds: the message says what to write into it."""

    class Beeps(OutputProcessor):
        pass

    app = text_app()
    app.state.mmout.binding.processors["image"] = Beeps()
    assert 'Beeps has no modality of its own: if it returns AudioOutput or VideoOutput, write modality = "audio"' in (
        asked(app)
    )


def test_a_model_of_text():
    """It has no output processor."""
    app = text_app()
    app.state.mmout = "the model of this server has no output processor"
    assert "no output processor" in asked(app)
