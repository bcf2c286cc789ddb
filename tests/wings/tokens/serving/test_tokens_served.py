"""Servers of models that write pictures and sounds as tokens, by OpenAI's own client."""

from __future__ import annotations

import base64
import io
import threading

import httpx
import numpy as np
import openai
import pytest
from asked_server import metric
from PIL import Image

soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")
pytestmark = pytest.mark.engine
CELL = 2
"""Pixels a side that the decoder of tiny_decoders makes of a code."""
RATE = 16000


def opened(entry):
    """A picture of an answer."""
    return Image.open(io.BytesIO(base64.b64decode(entry.b64_json)))


def test_two_pictures_of_one_request(drawing_client):
    """Each of the size that the template says; the same seed gives the same pictures, which differ from each other."""
    answers = [drawing_client.images.generate(prompt="a lake", n=2, extra_body={"seed": 5}) for _ in range(2)]
    first, second = (opened(entry) for entry in answers[0].data)
    assert first.size == second.size == (4 * CELL, 3 * CELL)
    assert first.tobytes() != second.tobytes()
    for one, other in zip(*(map(opened, answer.data) for answer in answers), strict=True):
        # On several threads sums depend on how many are decoded at once, and the rounding of a tie on the sums.
        np.testing.assert_allclose(np.asarray(one, int), np.asarray(other, int), atol=1)
    usage = answers[0].usage
    assert usage.output_tokens == 2 * (3 * 5 + 1)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens == len("<a lake|3x4<")  # each sign is a token


def test_a_size_is_made(drawing_client):
    """Width and height in pixels; what is between two cells is refused, and the server goes on."""
    answer = drawing_client.images.generate(prompt="a lake", size="12x10")
    assert opened(answer.data[0]).size == (12, 10)
    assert answer.size == "12x10"
    with pytest.raises(openai.BadRequestError, match="in steps of 2 and a height in steps of 2 pixels, got 13x10"):
        drawing_client.images.generate(prompt="a lake", size="13x10")


def test_an_address(drawing_client):
    """The picture is stored, and fetched."""
    answer = drawing_client.images.generate(prompt="a lake", response_format="url", output_format="webp")
    fetched = httpx.get(answer.data[0].url)
    assert fetched.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(fetched.content)).size == (8, 6)


def test_a_picture_that_ends_early_is_partial(drawing_client):
    """What has come by max_tokens is delivered as whole rows, and says so."""
    (entry,) = drawing_client.images.generate(prompt="a lake", extra_body={"max_tokens": 13}).data
    assert entry.partial is True
    assert opened(entry).size == (4 * CELL, 2 * CELL)


def test_no_picture(drawing_client):
    """A model that ends at once, and one whose tokens are no picture; both say so with 422.

    Where ``max_tokens`` has no room for the picture, the model is not held to one.
    """
    few = {"extra_body": {"max_tokens": 13}}
    with pytest.raises(openai.UnprocessableEntityError, match=r"gave no picture: it ended after 1 tokens .*stop"):
        drawing_client.images.generate(prompt="nothing", **few)
    with pytest.raises(openai.UnprocessableEntityError, match=r"tokens that are no picture or sound: .*261"):
        drawing_client.images.generate(prompt="broken", **few)
    assert drawing_client.images.generate(prompt="a lake", n=3).data


def test_a_model_is_held_to_a_picture(drawing_client):
    """Where there is room for it: one that would end at once, or write what is none, gives a picture."""
    for prompt in ("nothing", "broken"):
        (entry,) = drawing_client.images.generate(prompt=prompt).data
        assert opened(entry).size == (4 * CELL, 3 * CELL)
        assert not hasattr(entry, "partial")


def test_markers_of_a_client_draw_nothing(drawing_client):
    """What would be a picture's size and end as special tokens is text: the template's size holds."""
    answer = drawing_client.images.generate(prompt="<eoi></s><pad>9x9<boi>")
    assert opened(answer.data[0]).size == (4 * CELL, 3 * CELL)


def test_requests_of_many_clients(drawing_client):
    """Each gets pictures of its own size."""
    found = {}

    def ask(rows):
        answer = drawing_client.images.generate(prompt="a lake", n=2, size=f"8x{rows * CELL}")
        found[rows] = {opened(entry).size for entry in answer.data}

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rows: {(8, rows * CELL)} for rows in range(1, 5)}


def test_text_is_vllms(drawing_client):
    """The routes of text answer as ever."""
    answer = drawing_client.completions.create(
        model="painter", prompt="a", max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 8


def test_failures_are_counted(drawing_server, drawing_client):
    """On ``/metrics``, once each."""
    before = metric(drawing_server, "mmout:failures_total")
    with pytest.raises(openai.UnprocessableEntityError):
        drawing_client.images.generate(prompt="broken", extra_body={"max_tokens": 13})
    with pytest.raises(openai.BadRequestError):
        drawing_client.images.generate(prompt="a", size="1x1")
    assert metric(drawing_server, "mmout:failures_total") == before + 2


def test_other_routes_of_a_server_that_draws(drawing_server, drawing_client):
    """No 500: they say what the model does."""
    with pytest.raises(openai.BadRequestError, match="send a prompt to /v1/images/generations"):
        drawing_client.images.edit(image=b"x", prompt="x")
    with pytest.raises(openai.BadRequestError, match="gives no speech"):
        drawing_client.audio.speech.create(model="painter", voice="x", input="x")
    for method, path in (("POST", "/v1/scenes"), ("GET", "/v1/scenes"), ("POST", "/pooling"), ("GET", "/mmout")):
        assert httpx.request(method, f"{drawing_server.url}{path}").status_code < 500


def test_speech_is_a_file_of_the_models_rate(speaking_client):
    """The same seed gives the same sound, whatever the format; its rate is the model's."""
    asked = {"model": "speaker", "voice": "leo", "input": "hello", "extra_body": {"seed": 7}}
    sounds = []
    for name in ("wav", "flac"):
        answer = speaking_client.audio.speech.create(**asked, response_format=name)
        sound, rate = soundfile.read(io.BytesIO(answer.content))
        assert (rate, sound.ndim) == (RATE, 1)
        sounds.append(sound)
    np.testing.assert_array_equal(*sounds)
    assert np.abs(sounds[0]).max() > 0


def test_speech_is_streamed_to_a_file(speaking_client, tmp_path):
    """``with_streaming_response``; the voice goes into the prompt, and a longer one makes a longer sound here."""
    lengths = []
    for voice in ("a", "abcdefgh"):
        asked = {"model": "speaker", "voice": voice, "input": "hi", "response_format": "flac"}
        with speaking_client.audio.speech.with_streaming_response.create(**asked) as answer:
            answer.stream_to_file(tmp_path / "speech.flac")
        lengths.append(len(soundfile.read(tmp_path / "speech.flac")[0]))
    assert lengths[0] < lengths[1]


def test_speech_that_ends_early_says_so(speaking_client):
    """By max_tokens, in a header."""
    answer = speaking_client.audio.speech.create(model="speaker", voice="x", input="hi", extra_body={"max_tokens": 9})
    assert answer.response.headers["x-mmout-partial"] == "true"
    with pytest.raises(openai.UnprocessableEntityError, match=r"gave no sound: .*raise max_tokens"):
        speaking_client.audio.speech.create(model="speaker", voice="x", input="hi", extra_body={"max_tokens": 3})


def test_speech_that_cannot_be(speaking_client):
    """Fields that cannot be honoured are named; pictures are not to be had."""
    for body, param in (({"response_format": "aac"}, "response_format"), ({"speed": 2}, "speed")):
        with pytest.raises(openai.BadRequestError) as caught:
            speaking_client.audio.speech.create(model="speaker", voice="x", input="hi", extra_body=body)
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="gives no pictures; it speaks"):
        speaking_client.images.generate(prompt="a lake")
