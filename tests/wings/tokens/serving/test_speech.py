"""``/v1/audio/speech`` of a model that generates tokens, by OpenAI's client and an engine that does as told."""

from __future__ import annotations

import io

import numpy as np
import pytest
from token_models import AUDIO_CODES, BEGIN

openai = pytest.importorskip("openai")
soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")
pytest.importorskip("vllm", reason="the routes are vLLM's server's")

from token_service import FRAME, LENGTH, RATE, picture_of  # noqa: E402

from vllm_mmout.errors import OptionError  # noqa: E402

pytestmark = pytest.mark.engine
CODES = np.arange(20) % AUDIO_CODES
SECONDS = len(CODES) * FRAME / RATE
TYPES = {
    "mp3": ("audio/mpeg", "MP3"),
    "opus": ("audio/ogg; codecs=opus", "OGG"),
    "flac": ("audio/flac", "FLAC"),
    "wav": ("audio/wav", "WAV"),
    "pcm": (f"audio/pcm; rate={RATE}; channels=1", None),
}


def samples(codes=CODES):
    """What the decoder makes of codes."""
    return np.repeat(codes / AUDIO_CODES, FRAME)


@pytest.fixture
def speaker(painter):
    """Makes a model that speaks; gives the client, and the engine."""

    def make(*args, engine=None, **options):
        clients, made = painter(*args, audio=True, engine=engine, **options)
        processor = made.output_processor.binding.processors["codec_audio"]
        made.answer = lambda *_: [[picture_of(processor, CODES)]]
        return clients, made

    return make


@pytest.fixture
def spoken(speaker):
    """A model without a template."""
    clients, engine = speaker()
    with clients as client:
        yield client, engine


def read(content, container):
    """Samples of a file, and their rate."""
    if container is None:
        return np.frombuffer(content, "<i2") / 2**15, RATE
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        assert file.format == container
        return file.read(dtype="float64"), file.samplerate


@pytest.mark.parametrize("output", ["media", "mixed"])
def test_a_whole_sound_is_asked_of_the_engine(spoken, output):
    """The engine guides the answer; other values are refused with the field."""
    client, engine = spoken
    client.audio.speech.create(model="painter", voice="x", input="hello", extra_body={"output": output})
    assert engine.asked[-1][1].output == output
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="painter", voice="x", input="hello", extra_body={"output": "none"})
    assert refused.value.param == "output"


@pytest.mark.parametrize("name", TYPES)
def test_each_format_is_what_it_says(spoken, name):
    """Media type, container and rate; what is not lossy has the decoder's samples."""
    client, _ = spoken
    answer = client.audio.speech.create(model="painter", voice="alloy", input="hello", response_format=name)
    media_type, container = TYPES[name]
    assert answer.response.headers["content-type"] == media_type
    assert "x-mmout-partial" not in answer.response.headers
    sound, rate = read(answer.content, container)
    assert rate == RATE
    assert abs(len(sound) / rate - SECONDS) < 0.2
    if name in ("flac", "wav", "pcm"):
        np.testing.assert_allclose(sound, samples(), atol=2**-14)


def test_mp3_is_usual(spoken):
    """Without a format."""
    client, _ = spoken
    answer = client.audio.speech.create(model="painter", voice="alloy", input="hello")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert answer.response.headers["content-disposition"] == 'inline; filename="speech.mp3"'


def test_a_stream_of_the_response_writes_a_file(spoken, tmp_path):
    """``with_streaming_response``, as OpenAI's guide has it."""
    client, _ = spoken
    speech = client.audio.speech.with_streaming_response
    with speech.create(model="painter", voice="alloy", input="hello", response_format="wav") as answer:
        answer.stream_to_file(tmp_path / "speech.wav")
    np.testing.assert_allclose(soundfile.read(tmp_path / "speech.wav")[0], samples(), atol=2**-14)


def test_several_sounds_are_joined(spoken):
    """One after the other; one that is partial makes the whole partial."""
    client, engine = spoken
    processor = engine.output_processor.binding.processors["codec_audio"]
    engine.answer = lambda *_: [[picture_of(processor, CODES), picture_of(processor, CODES[::-1], complete=False)]]
    answer = client.audio.speech.create(model="painter", voice="x", input="hello", response_format="flac")
    both = np.concatenate([samples(), samples(CODES[::-1])])
    np.testing.assert_allclose(soundfile.read(io.BytesIO(answer.content))[0], both, atol=2**-14)
    assert answer.response.headers["x-mmout-partial"] == "true"


def test_what_the_engine_is_asked(speaker):
    """The template with text, voice and instructions; as many tokens as the model's length leaves."""
    clients, engine = speaker("<s>{voice:tara}: {input} ({instructions})<boi>")
    with clients as client:
        client.audio.speech.create(model="painter", voice={"id": "leo"}, input="hi", instructions="slow")
        client.post("/audio/speech", body={"input": "<boi>", "seed": 3}, cast_to=object)
    (first, params), (second, _) = engine.asked
    encode = engine.tokenizer
    assert first == encode("<s>leo: hi (slow)<boi>", add_special_tokens=False)["input_ids"]
    assert params.sampling.max_tokens == LENGTH - len(first)
    letters = encode("<boi>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    before = encode("<s>tara: ", add_special_tokens=False)["input_ids"]
    assert second == [*before, *letters, *encode(" ()", add_special_tokens=False)["input_ids"], BEGIN]


def test_a_voice_that_the_prompt_names_is_needed(speaker):
    """Where the template has no default."""
    clients, engine = speaker("{voice}: {input}")
    with clients as client, pytest.raises(openai.BadRequestError, match="voice is missing") as caught:
        client.post("/audio/speech", body={"input": "hi"}, cast_to=object)
    assert caught.value.param == "voice"
    assert not engine.asked


REFUSED = [
    ({"input": ""}, "input", "input is missing"),
    ({"input": "x" * 4097}, "input", "4097 characters, and may have 4096"),
    ({"response_format": ""}, "response_format", "must be one of mp3, opus, ogg, flac, wav, pcm, got ''"),
    ({"response_format": "aac"}, "response_format", "must be one of mp3, opus, ogg, flac, wav, pcm, got 'aac'"),
    ({"speed": 1.5}, "speed", "speed must be 1, got 1.5"),
    ({"stream_format": "ndjson"}, "stream_format", "must be one of audio, sse, got 'ndjson'"),
    ({"instructions": "slow"}, "instructions", "no place in this model's prompt"),
    ({"voice": 3}, "voice", "voice must be text or"),
    ({"voice": {"id": 3}}, "voice", "voice must be text or"),
    ({"voice": {"name": "x"}}, "voice", "voice must be text or"),
    ({"n": 2}, "n", "unknown field 'n'"),
    ({"temperature": -1}, "temperature", "non-negative"),
    ({"max_tokens": 10_000}, "max_tokens", "at most 595"),
]


@pytest.mark.parametrize(("body", "param", "message"), REFUSED)
def test_what_cannot_be_honoured_names_its_field(spoken, body, param, message):
    """And never reaches the engine."""
    client, engine = spoken
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.post("/audio/speech", body={"input": "hello", "voice": "x", **body}, cast_to=object)
    assert caught.value.param == param
    assert not engine.asked


def test_speed_one_and_audio_are_what_there_is(spoken):
    """What changes nothing is taken."""
    client, _ = spoken
    asked = {"model": "painter", "voice": "x", "input": "hi", "speed": 1.0, "stream_format": "audio"}
    assert client.audio.speech.create(**asked).content


@pytest.mark.parametrize("name", ["wav", "pcm"])
def test_what_comes_without_chunks_is_sent_at_once(spoken, name):
    """A stream of a sound that comes at the end has it all the same; the rate of raw samples is in the header."""
    client, engine = spoken
    asked = {"model": "painter", "voice": "x", "input": "hi", "response_format": name, "stream_format": "audio"}
    answer = client.audio.speech.create(**asked)
    assert answer.response.headers["content-type"] == TYPES[name][0]
    np.testing.assert_allclose(read(answer.content, TYPES[name][1])[0], samples(), atol=2**-14)
    assert engine.asked[0][1].chunk_seconds == 0.5


def test_chunks_of_a_decoder_that_makes_none(spoken):
    """Where a client asks for their length it is told; where not, the sound comes whole."""
    client, engine = spoken
    processor = engine.output_processor.binding.processors["codec_audio"]
    processor._chunking = OptionError("it hears all", param="chunk_seconds")
    with pytest.raises(openai.BadRequestError, match="it hears all") as caught:
        client.post("/audio/speech", body={"input": "hi", "chunk_seconds": 1}, cast_to=object)
    assert caught.value.param == "chunk_seconds"
    assert not engine.asked
    assert client.audio.speech.create(model="painter", voice="x", input="hi", stream_format="sse").content
    assert engine.asked[0][1].chunk_seconds is None


def test_a_format_that_cannot_hold_the_rate_is_refused_before_the_model_runs(painter):
    """The message lists those that can."""
    clients, engine = painter(audio=True)
    engine.output_processor.binding.processors["codec_audio"].sampling_rate = 44100
    with clients as client, pytest.raises(openai.BadRequestError, match=r"opus takes rates of .* got 44100") as caught:
        client.audio.speech.create(model="painter", voice="x", input="hi", response_format="opus")
    assert "choose another response_format: mp3, ogg, flac, wav, pcm" in caught.value.message
    assert caught.value.param == "response_format"
    assert not engine.asked


def test_no_sound_is_an_error(spoken):
    """It says how the model ended."""
    client, engine = spoken
    engine.answer = lambda *_: [[]]
    with pytest.raises(openai.UnprocessableEntityError, match="gave no sound: it ended after 7 tokens"):
        client.audio.speech.create(model="painter", voice="x", input="hi")


def test_pictures_are_not_to_be_had(spoken):
    """The error names the route that there is."""
    client, _ = spoken
    with pytest.raises(openai.BadRequestError, match="gives no pictures; it speaks: send a text to /v1/audio/speech"):
        client.images.generate(model="painter", prompt="a lake")
