"""Servers of models that write pictures and sounds as tokens, by OpenAI's own client."""

from __future__ import annotations

import base64
import io
import threading
from contextlib import closing

import httpx
import numpy as np
import openai
import pytest
from asked_server import metric, posted
from PIL import Image
from scene_clients import wait_for

soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")
pytestmark = pytest.mark.engine
CELL = 2
"""Pixels a side that the decoder of tiny_decoders makes of a code."""
RATE = 16000


def client_of(server):
    """OpenAI's client."""
    return closing(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0))


@pytest.fixture(scope="module")
def painter(drawing_server):
    """Of the model of pictures."""
    with client_of(drawing_server) as client:
        yield client


@pytest.fixture(scope="module")
def speaker(speaking_server):
    """Of the model of sounds."""
    with client_of(speaking_server) as client:
        yield client


def opened(entry):
    """A picture of an answer."""
    return Image.open(io.BytesIO(base64.b64decode(entry.b64_json)))


def test_two_pictures_of_one_request(painter):
    """Each of the size that the template says; the same seed gives the same pictures, which differ from each other."""
    answers = [painter.images.generate(prompt="a lake", n=2, extra_body={"seed": 5}) for _ in range(2)]
    first, second = (opened(entry) for entry in answers[0].data)
    assert first.size == second.size == (4 * CELL, 3 * CELL)
    assert first.tobytes() != second.tobytes()
    assert [entry.b64_json for entry in answers[0].data] == [entry.b64_json for entry in answers[1].data]
    usage = answers[0].usage
    assert usage.output_tokens == 2 * (3 * 5 + 1)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens == len("<a lake|3x4<")  # each sign is a token


def test_a_size_is_made(painter):
    """Width and height in pixels; what is between two cells is refused, and the server goes on."""
    answer = painter.images.generate(prompt="a lake", size="12x10")
    assert opened(answer.data[0]).size == (12, 10)
    assert answer.size == "12x10"
    with pytest.raises(openai.BadRequestError, match="in steps of 2 and a height in steps of 2 pixels, got 13x10"):
        painter.images.generate(prompt="a lake", size="13x10")


def test_an_address(painter):
    """The picture is stored, and fetched."""
    answer = painter.images.generate(prompt="a lake", response_format="url", output_format="webp")
    fetched = httpx.get(answer.data[0].url)
    assert fetched.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(fetched.content)).size == (8, 6)


def test_a_picture_that_ends_early_is_partial(painter):
    """What has come by max_tokens is delivered as whole rows, and says so."""
    (entry,) = painter.images.generate(prompt="a lake", extra_body={"max_tokens": 13}).data
    assert entry.partial is True
    assert opened(entry).size == (4 * CELL, 2 * CELL)


def test_no_picture(painter):
    """A model that ends at once, and one whose tokens are no picture; both say so with 422.

    Where ``max_tokens`` has no room for the picture, the model is not held to one.
    """
    few = {"extra_body": {"max_tokens": 13}}
    with pytest.raises(openai.UnprocessableEntityError, match=r"gave no picture: it ended after 1 tokens .*stop"):
        painter.images.generate(prompt="nothing", **few)
    with pytest.raises(openai.UnprocessableEntityError, match=r"tokens that are no picture or sound: .*261"):
        painter.images.generate(prompt="broken", **few)
    assert painter.images.generate(prompt="a lake", n=3).data


def test_a_model_is_held_to_a_picture(painter):
    """Where there is room for it: one that would end at once, or write what is none, gives a picture."""
    for prompt in ("nothing", "broken"):
        (entry,) = painter.images.generate(prompt=prompt).data
        assert opened(entry).size == (4 * CELL, 3 * CELL)
        assert not hasattr(entry, "partial")


def test_markers_of_a_client_draw_nothing(painter):
    """What would be a picture's size and end as special tokens is text: the template's size holds."""
    answer = painter.images.generate(prompt="<eoi></s><pad>9x9<boi>")
    assert opened(answer.data[0]).size == (4 * CELL, 3 * CELL)


def test_requests_of_many_clients(painter):
    """Each gets pictures of its own size."""
    found = {}

    def ask(rows):
        answer = painter.images.generate(prompt="a lake", n=2, size=f"8x{rows * CELL}")
        found[rows] = {opened(entry).size for entry in answer.data}

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rows: {(8, rows * CELL)} for rows in range(1, 9)}


def running(server):
    """Answers that the engine works on."""
    return metric(server, "vllm:num_requests_running")


def test_a_client_that_goes_away_ends_its_request(drawing_server):
    """The engine runs it no longer, though it would for 40 s."""
    body = {"prompt": "slow", "n": 2, "size": "40x40"}
    with closing(posted(drawing_server, "/v1/images/generations", json=body)):
        wait_for(lambda: running(drawing_server) == 2, "the request does not run", 30)
    wait_for(lambda: running(drawing_server) == 0, "the request still runs", 15)


def test_text_is_vllms(drawing_server):
    """The routes of text answer as ever."""
    with client_of(drawing_server) as client:
        answer = client.completions.create(
            model="painter", prompt="a", max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
    assert answer.usage.completion_tokens == 8


def test_failures_are_counted(drawing_server, painter):
    """On ``/metrics``, once each."""
    before = metric(drawing_server, "mmout:failures_total")
    with pytest.raises(openai.UnprocessableEntityError):
        painter.images.generate(prompt="broken", extra_body={"max_tokens": 13})
    with pytest.raises(openai.BadRequestError):
        painter.images.generate(prompt="a", size="1x1")
    assert metric(drawing_server, "mmout:failures_total") == before + 2


def test_other_routes_of_a_server_that_draws(drawing_server, painter):
    """No 500: they say what the model does."""
    with pytest.raises(openai.BadRequestError, match="send a prompt to /v1/images/generations"):
        painter.images.edit(image=b"x", prompt="x")
    with pytest.raises(openai.BadRequestError, match="gives no speech"):
        painter.audio.speech.create(model="painter", voice="x", input="x")
    for method, path in (("POST", "/v1/scenes"), ("GET", "/v1/scenes"), ("POST", "/pooling"), ("GET", "/mmout")):
        assert httpx.request(method, f"{drawing_server.url}{path}").status_code < 500


@pytest.mark.parametrize("name", ["mp3", "opus", "flac", "wav", "pcm"])
def test_speech_in_each_format(speaker, name):
    """What comes is read by soundfile, at the model's rate; the same seed gives the same sound."""
    asked = {"model": "speaker", "voice": "leo", "input": "hello", "response_format": name, "extra_body": {"seed": 7}}
    answer = speaker.audio.speech.create(**asked)
    reference = speaker.audio.speech.create(**{**asked, "response_format": "wav"})
    expected, rate = soundfile.read(io.BytesIO(reference.content))
    assert (rate, expected.ndim) == (RATE, 1)
    assert np.abs(expected).max() > 0
    if name == "pcm":
        sound = np.frombuffer(answer.content, "<i2") / 2**15
    else:
        sound, found = soundfile.read(io.BytesIO(answer.content))
        assert found == RATE
    if name in ("flac", "wav", "pcm"):
        np.testing.assert_array_equal(sound, expected)
    assert len(sound) >= len(expected)


def test_speech_is_streamed_to_a_file(speaker, tmp_path):
    """``with_streaming_response``; the voice goes into the prompt, and a longer one makes a longer sound here."""
    lengths = []
    for voice in ("a", "abcdefgh"):
        asked = {"model": "speaker", "voice": voice, "input": "hi", "response_format": "flac"}
        with speaker.audio.speech.with_streaming_response.create(**asked) as answer:
            answer.stream_to_file(tmp_path / "speech.flac")
        lengths.append(len(soundfile.read(tmp_path / "speech.flac")[0]))
    assert lengths[0] < lengths[1]


def test_speech_that_ends_early_says_so(speaker):
    """By max_tokens, in a header."""
    answer = speaker.audio.speech.create(model="speaker", voice="x", input="hi", extra_body={"max_tokens": 9})
    assert answer.response.headers["x-mmout-partial"] == "true"
    with pytest.raises(openai.UnprocessableEntityError, match=r"gave no sound: .*raise max_tokens"):
        speaker.audio.speech.create(model="speaker", voice="x", input="hi", extra_body={"max_tokens": 3})


def test_speech_that_cannot_be(speaker):
    """Fields that cannot be honoured are named; pictures are not to be had."""
    for body, param in (({"response_format": "aac"}, "response_format"), ({"speed": 2}, "speed")):
        with pytest.raises(openai.BadRequestError) as caught:
            speaker.audio.speech.create(model="speaker", voice="x", input="hi", extra_body=body)
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="gives no pictures; it speaks"):
        speaker.images.generate(prompt="a lake")
