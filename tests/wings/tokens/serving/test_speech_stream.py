"""Speech that comes while it is made, from a server, by OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
from contextlib import ExitStack, closing

import numpy as np
import openai
import pytest
from asked_server import metric, posted
from scene_clients import wait_for

soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")
pytestmark = pytest.mark.engine
RATE = 16000
CHUNKS = {"chunk_seconds": 0.002}
"""Two frames of the server's Mimi."""
LOSSLESS = ("wav", "pcm", "flac")


def asked(name, text="a sound", **more):
    """Arguments of a request that gives the same sound each time."""
    return {"model": "speaker", "voice": "x", "input": text, "response_format": name, "extra_body": {"seed": 3, **more}}


def read(content, name):
    """Samples [n] of a file, by who decodes it."""
    if name == "pcm":
        return np.frombuffer(content, "<i2") / 2**15
    if name != "flac":
        samples, rate = soundfile.read(io.BytesIO(content))
        assert rate == RATE
        return samples
    av = pytest.importorskip("av", reason="libsndfile reads no FLAC of unknown length")
    with av.open(io.BytesIO(content)) as file:
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]) / 2**15


@pytest.fixture(scope="module")
def whole(speaking_client):
    """The samples of the sound that comes whole."""
    return read(speaking_client.audio.speech.create(**asked("wav")).content, "wav")


@pytest.mark.parametrize("name", ["wav", "pcm", "flac", "mp3", "opus", "ogg"])
def test_what_is_streamed_is_the_whole(speaking_client, whole, name):
    """The bytes of each format, piece by piece; without loss they have every sample of the sound that comes whole."""
    with speaking_client.audio.speech.with_streaming_response.create(**asked(name, **CHUNKS)) as answer:
        assert "content-length" not in answer.headers
        content = b"".join(answer.iter_bytes())
    samples = read(content, name)
    if name in LOSSLESS:
        np.testing.assert_allclose(samples, whole, rtol=0, atol=2 / 2**15)
        assert samples.shape == whole.shape
    assert len(samples) >= len(whole)
    if name == "pcm":
        assert answer.headers["content-type"] == f"audio/pcm; rate={RATE}; channels=1"


def test_the_first_sound_comes_while_the_model_speaks(speaking_server, speaking_client, leave):
    """Bytes are there, and the engine still runs the request."""
    create = speaking_client.audio.speech.with_streaming_response.create
    with create(**asked("pcm", "a held sound", **CHUNKS), stream_format="audio") as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        assert metric(speaking_server, "vllm:num_requests_running") == 1
        leave.touch()
        rest = b"".join(pieces)
    assert 0 < len(first) < len(rest)


def events(answer, after_first=lambda: None):
    """The events of an answer. ``after_first`` is called when the first bytes are there."""
    texts = answer.iter_text()
    begun = next(texts)
    after_first()
    lines = "".join([begun, *texts]).split("\n\n")
    pairs = [line.split("\n") for line in lines if line]
    for name, data in pairs:
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
    return [json.loads(data.removeprefix("data: ")) for _, data in pairs]


@pytest.mark.parametrize("name", ["pcm", "wav"])
def test_events_are_openais(speaking_client, leave, name):
    """Deltas whose joined base64 is the file, then what was used."""
    create = speaking_client.audio.speech.with_streaming_response.create
    with create(**asked(name, "a held sound", **CHUNKS), stream_format="sse") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *deltas, done = events(answer, leave.touch)
    assert len(deltas) > 1
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    content = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    whole = read(speaking_client.audio.speech.create(**asked("wav", "a held sound")).content, "wav")
    np.testing.assert_allclose(read(content, name), whole, rtol=0, atol=2 / 2**15)
    assert done["type"] == "speech.audio.done"
    frames = len(whole) // 16
    assert done["usage"]["output_tokens"] == 4 * frames + 3  # the markers, and the end
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]
    assert "partial" not in done


def test_a_sound_that_is_cut_off_says_so(speaking_client):
    """The last event has it."""
    create = speaking_client.audio.speech.with_streaming_response.create
    with create(**asked("pcm", max_tokens=30), stream_format="sse") as answer:
        *_, done = events(answer)
    assert done["partial"] is True
    assert done["usage"]["output_tokens"] == 30


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_errors_before_the_first_sound_have_their_status(speaking_client, stream_format):
    """As without a stream."""
    create = speaking_client.audio.speech.create
    with pytest.raises(openai.UnprocessableEntityError, match="gave no sound: it ended after 1 tokens"):
        create(**asked("pcm", "nothing"), stream_format=stream_format)
    with pytest.raises(openai.BadRequestError, match="chunk_seconds must be") as caught:
        create(**asked("pcm", chunk_seconds=0), stream_format=stream_format)
    assert caught.value.param == "chunk_seconds"


def test_a_failure_after_the_first_sound_is_seen(speaking_server, speaking_client, leave):
    """Bytes end without their end, events with an error; the server goes on."""
    create = speaking_client.audio.speech.with_streaming_response.create
    with create(**asked("pcm", "held and spoiled in the middle", **CHUNKS), stream_format="audio") as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        leave.touch()
        with pytest.raises(Exception, match="peer closed connection without sending complete message"):
            list(pieces)
    leave.unlink()
    with create(**asked("pcm", "held and spoiled in the middle", **CHUNKS), stream_format="sse") as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        leave.touch()
        text += "".join(pieces)
    last = text.rstrip("\n").rpartition("\n\n")[2]
    assert last.startswith("event: error\ndata: ")
    assert "no picture or sound" in json.loads(last.partition("data: ")[2])["error"]["message"]
    assert "speech.audio.done" not in text
    wait_for(lambda: metric(speaking_server, "vllm:num_requests_running") == 0, "it still runs", 15)


def test_a_client_that_goes_away_ends_its_request(speaking_server):
    """As bytes and as events, before and after the first of them."""

    def await_running(count):
        wait_for(lambda: metric(speaking_server, "vllm:num_requests_running") == count, f"{count} must run", 30)

    with ExitStack() as stack:
        clients = {}
        for stream_format in ("audio", "sse"):
            body = {"input": "slow " + "a" * 80, "stream_format": stream_format, "response_format": "pcm", **CHUNKS}
            for pieces in (0, 2):
                client = stack.enter_context(closing(posted(speaking_server, "/v1/audio/speech", json=body)))
                clients[stream_format, pieces] = client
        await_running(4)
        for left, ((_, pieces), client) in zip((3, 2, 1, 0), clients.items(), strict=True):
            if pieces:
                assert client.sock.recv(1 << 16)
            client.close()
            await_running(left)
