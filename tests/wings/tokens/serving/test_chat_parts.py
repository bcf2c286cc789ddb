"""Pieces of streamed sounds, and the places of chats with media among the requests that are served at once."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace

import numpy as np
import openai
import pytest

pytest.importorskip("vllm", reason="the routes are vLLM's server's")

from token_service import audio_processor, openai_client, token_app

from vllm_mmout import AudioOutput
from vllm_mmout.errors import DecodeError
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.serving.chat.handler import answer_chats
from vllm_mmout.wings.tokens.serving.chat.parts import PIECE, AudioDeltas, whole_audio
from vllm_mmout.wings.tokens.serving.chat.requested_media import RequestedMedia
from vllm_mmout.wings.tokens.serving.speech import RESPONSE_FORMATS, encoded

pytestmark = pytest.mark.engine
RAW = RequestedMedia(None, text=True, form="pcm")


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pieces_of_any_length_are_one_sound(channels):
    """Each piece is of whole samples; base64 joined and pieces joined are the whole, which is that of one message."""
    lengths = (1, 2, 5, 7, PIECE, 1, 4)
    sounds = [AudioOutput(np.full((channels, n), n / 2**18, np.float32), 8000) for n in lengths]
    deltas = AudioDeltas()
    said = [one for sound in sounds for one in deltas.add(RAW, [sound])]
    said += deltas.end("words")
    data = [one["data"] for one in said if "data" in one]
    pieces = list(map(base64.b64decode, data))
    assert {len(piece) % (2 * channels) for piece in pieces} == {0}
    assert max(map(len, pieces)) <= PIECE
    whole = whole_audio(RAW, sounds, "words")
    assert "".join(data) == whole["data"]
    assert b"".join(pieces) == base64.b64decode(whole["data"])
    assert said[-2] == {"transcript": "words"}


@pytest.mark.parametrize("form", RESPONSE_FORMATS)
def test_a_whole_sound_is_the_file_of_the_speech_route(form):
    """In each format, byte for byte; Ogg has a number of its own in each stream."""
    sound = AudioOutput(np.sin(np.arange(4000) / 9).astype(np.float32)[None], 16000)
    audio = whole_audio(RequestedMedia(None, text=True, form=form), [sound], "words")
    file = encoded(sound, form, "response_format")
    content, expected = base64.b64decode(audio["data"]), file.read(0, file.nbytes)
    assert len(content) == len(expected)
    if form not in ("opus", "ogg"):
        assert content == expected
    assert (audio["sample_rate"], audio["channels"], audio["transcript"]) == (16000, 1, "words")


def test_an_answer_without_sound_has_no_audio():
    """Not even an end."""
    assert list(AudioDeltas().end("words")) == []


def test_sounds_of_two_rates_are_no_stream():
    """Their samples cannot follow one another."""
    deltas = AudioDeltas()
    list(deltas.add(RAW, [AudioOutput(np.zeros(9, np.float32), 8000)]))
    with pytest.raises(DecodeError, match="8000"):
        list(deltas.add(RAW, [AudioOutput(np.zeros(9, np.float32), 16000)]))


class Chats:
    """Stands for vLLM's handler: streams nothing."""

    engine_client = None

    def create_error_response(self, message, kind, status, param):
        """What an error is made of."""
        return SimpleNamespace(message=message, type=kind, status=status, param=param)

    async def create_chat_completion(self, request, raw_request):
        """Events, of which there are none."""

        async def events():
            yield "data: [DONE]\n\n"

        return events()


@pytest.fixture
def app(byte_tokenizer):
    """An app with a handler of chats."""
    app, _ = token_app({"codec_audio": audio_processor()}, byte_tokenizer)
    app.state.openai_serving_chat = Chats()
    answer_chats(app.state, app.state.mmout)
    return app


def asked(app):
    """A chat that streams a sound."""
    audio = {"format": "pcm16"}
    request = SimpleNamespace(messages=[], stream=True, modalities=["audio"], audio=audio, chat_template_kwargs=None)
    return app.state.openai_serving_chat.create_chat_completion(request, SimpleNamespace(app=app))


def test_openais_client_waits_as_long_as_a_full_server_says(app, monkeypatch):
    """The routes and the chats of a server without a free place say for how long, at most a minute."""

    async def chat():
        return await asked(app)

    waited = []
    monkeypatch.setattr("openai._base_client.time.sleep", waited.append)
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    app.state.mmout_slots.count = 0
    with openai_client(app) as client:
        for call in (
            lambda client: client.audio.speech.create(model="painter", voice="x", input="hello"),
            lambda client: client.chat.completions.create(model="painter", messages=[]),
        ):
            with pytest.raises(openai.RateLimitError) as full:
                call(client.with_options(max_retries=2))
            assert full.value.request_id == full.value.response.headers["x-request-id"] != ""
    assert waited == [5.0] * 4


def test_a_stream_holds_a_place_until_it_is_gone(app):
    """Also where no event of it was asked for; without a place it is refused with 429."""

    async def run():
        slots = app.state.mmout_slots
        slots.count = 2
        first, second = await asked(app), await asked(app)
        with pytest.raises(ApiError) as full:
            await asked(app)
        assert (full.value.status, full.value.headers) == (429, {"Retry-After": "5"})
        assert [one async for one in first] == ["data: [DONE]\n\n"]
        del first, second
        assert slots.taken == 0

    asyncio.run(run())
