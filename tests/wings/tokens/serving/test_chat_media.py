"""Chats whose answers hold pictures and sounds, by OpenAI's own client, of servers of models that write them."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import httpx
import numpy as np
import openai
import pytest
from asked_server import metric, posted, stable
from PIL import Image
from scene_clients import wait_for
from serving import served
from token_models import DRAWING, EOS, PAINTER
from token_streams import PICTURE, SOUND, codes, of_text

soundfile = pytest.importorskip("soundfile", reason="the oracle is soundfile")
pytestmark = pytest.mark.engine
CHAT = "/v1/chat/completions"
CELL = 2
"""Pixels a side that the decoder of tiny_decoders makes of a code."""
RATE = 16000
URL = "data:image/png;base64,"
WAV = {"voice": "tara", "format": "wav"}
RAW = {"voice": "tara", "format": "pcm16"}


def drawn(client, text="a lake", modalities=("text", "image"), create=None, **body):
    """The answer to one message; ``script``: of these tokens."""
    return _asked(create or client.chat.completions.create, "painter", text, modalities, **body)


def spoken(client, text="hello", modalities=("text", "audio"), create=None, **body):
    """The answer to one message with a sound."""
    body = {"audio": WAV, **body}
    return _asked(create or client.chat.completions.create, "speaker", text, modalities, **body)


def _asked(create, model, text, modalities, script=None, extra_body=None, **body):
    extra = {**(extra_body or {}), "modalities": list(modalities)}
    if script is not None:
        extra["vllm_xargs"] = {"script": [*script, EOS]}
    return create(model=model, messages=[{"role": "user", "content": text}], extra_body=extra, **body)


def pictures(message):
    """The pictures of a message, as a client reads them that knows entries of ``images``."""
    images = getattr(message, "images", None) or []
    assert [entry["type"] for entry in images] == ["image_url"] * len(images)
    urls = [entry["image_url"]["url"] for entry in images]
    assert all(url.startswith(URL) for url in urls)
    return [base64.b64decode(url.removeprefix(URL)) for url in urls]


def size(picture):
    """Of a PNG."""
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        return image.size


def picture(rows, columns):
    """The tokens of a picture."""
    return PICTURE.build([codes(rows, columns)])


def sound(frames):
    """The tokens of a sound."""
    return SOUND.build([(np.arange(frames) * 7 + book) % 32 for book in range(4)])


MIXED = [*of_text("One "), *picture(2, 3), *of_text("and "), *picture(4, 1), *of_text("two.")]


def test_a_picture_is_that_of_the_images_route(drawing_client):
    """The same prompt and seed give the same file; usage, reason and text are vLLM's."""
    answer = drawn(drawing_client, seed=5)
    (entry,) = drawing_client.images.generate(prompt="a lake", extra_body={"seed": 5}).data
    (choice,) = answer.choices
    assert pictures(choice.message) == [base64.b64decode(entry.b64_json)]
    assert (choice.message.content, choice.finish_reason, choice.message.audio) == ("", "stop", None)
    assert answer.usage.completion_tokens == 3 * 5 + 2


def test_a_marker_in_a_clients_text_is_refused(drawing_client):
    """It would be a token of the prompt, as if the model itself had begun a picture."""
    with pytest.raises(openai.BadRequestError, match="reads as a marker of its media") as refused:
        drawn(drawing_client, "a lake <boi>")
    assert refused.value.param == "messages"


def test_text_and_pictures_of_one_answer(drawing_client):
    """The text is without media tokens; pictures are in their order, each with its index."""
    (choice,) = drawn(drawing_client, script=MIXED).choices
    assert choice.message.content == "One and two."
    assert [size(one) for one in pictures(choice.message)] == [(6, 4), (2, 8)]
    assert [entry["index"] for entry in choice.message.images] == [0, 1]


def test_a_stream_is_put_together_by_openais_client(drawing_client):
    """To the same message; text comes as it is made, media before the event that ends the answer."""
    whole = drawn(drawing_client, script=MIXED).choices[0].message
    with drawn(drawing_client, create=drawing_client.chat.completions.stream, script=MIXED) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        message = stream.get_final_completion().choices[0].message
    assert (message.content, pictures(message)) == (whole.content, pictures(whole))
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    shown = [chunk for chunk in chunks if getattr(chunk.choices[0].delta, "images", None)]
    assert len(shown) == 2
    assert len(chunks) < 24, "a media token is no event"


def test_answers_of_one_request(drawing_client):
    """Each has its own picture, streamed to its own choice."""
    whole = [pictures(choice.message) for choice in drawn(drawing_client, n=3, seed=8).choices]
    assert len({one for (one,) in whole}) == 3
    found = {0: "", 1: "", 2: ""}
    with closing(drawn(drawing_client, n=3, seed=8, stream=True, stream_options={"include_usage": True})) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                for entry in getattr(choice.delta, "images", None) or ():
                    found[choice.index] += entry["image_url"]["url"]
    assert [base64.b64decode(found[index].removeprefix(URL)) for index in range(3)] == [one for (one,) in whole]
    assert chunk.usage.completion_tokens == 3 * (3 * 5 + 2)


def test_a_picture_that_ends_early_is_partial(drawing_client):
    """Its whole rows come, and it says so; the reason is that of the tokens."""
    (choice,) = drawn(drawing_client, max_completion_tokens=13).choices
    assert choice.finish_reason == "length"
    assert [entry["partial"] for entry in choice.message.images] == [True]
    assert [size(one) for one in pictures(choice.message)] == [(4 * CELL, 2 * CELL)]


def test_fields_of_vllm_work(drawing_client):
    """The template's values reach the prompt, a stop string ends the text."""
    (choice,) = drawn(drawing_client, extra_body={"chat_template_kwargs": {"size": "5x2"}}).choices
    assert [size(one) for one in pictures(choice.message)] == [(2 * CELL, 5 * CELL)]
    (choice,) = drawn(drawing_client, script=MIXED, stop="two").choices
    assert (choice.message.content, choice.stop_reason, len(pictures(choice.message))) == ("One and ", "two", 2)


@pytest.mark.slow
def test_log_probabilities_are_of_all_tokens(drawing_client):
    """Whole and streamed; slow, since vLLM compiles for them."""
    (choice,) = drawn(drawing_client, logprobs=True).choices
    assert len(choice.logprobs.content) == 3 * 5 + 2
    with closing(drawn(drawing_client, logprobs=True, stream=True)) as stream:
        said = [chunk.choices[0].logprobs for chunk in stream]
    assert sum(len(one.content) for one in said if one) == 3 * 5 + 2


def test_text_that_is_not_asked_for_stays_away(drawing_client):
    """Whole and streamed."""
    (choice,) = drawn(drawing_client, modalities=["image"], script=MIXED).choices
    assert (choice.message.content, len(pictures(choice.message))) == (None, 2)
    with closing(drawn(drawing_client, modalities=["image"], script=MIXED, stream=True)) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert not any(delta.content for delta in deltas)
    assert len(deltas) == 4, "the role, two pictures, the end"


def test_whole_media_are_asked_for(drawing_client):
    """One whole picture and nothing else, whatever the model would write; another value is refused with the field."""
    (choice,) = drawn(drawing_client, "a lake", extra_body={"output": "media"}, seed=3, temperature=1.5).choices
    (entry,) = choice.message.images
    assert (choice.message.content or "", "partial" in entry) == ("", False)
    with pytest.raises(openai.BadRequestError) as refused:
        drawn(drawing_client, extra_body={"output": "classes"})
    assert refused.value.param == "output"


def test_an_answer_without_media_is_text(drawing_client):
    """A model that does not draw does not fail."""
    (choice,) = drawn(drawing_client, script=of_text("No.")).choices
    assert (choice.message.content, pictures(choice.message), choice.finish_reason) == ("No.", [], "stop")


def test_a_sound_is_that_of_the_speech_route(speaking_client):
    """The same prompt and seed give the same file; id and times are there."""
    answer = spoken(speaking_client, "hello ", audio={"voice": "leo", "format": "flac"}, seed=7)
    audio = answer.choices[0].message.audio
    asked = {"model": "speaker", "voice": "leo", "input": "hello", "response_format": "flac"}
    reference = speaking_client.audio.speech.create(**asked, extra_body={"seed": 7}).content
    assert base64.b64decode(audio.data) == reference
    assert audio.id.startswith("audio_")
    assert (audio.sample_rate, audio.channels) == (RATE, 1)
    assert abs(audio.expires_at - answer.created) < 60
    assert audio.transcript == answer.choices[0].message.content == ""


def test_sounds_of_one_answer_are_joined_and_transcribed(speaking_client):
    """The transcript is the text, whole and streamed; the sound is the same, in pieces of whole samples."""
    script = [*of_text("Well, "), *sound(9), *of_text("yes."), *sound(5)]
    message = spoken(speaking_client, script=script, audio=RAW).choices[0].message
    assert message.content == message.audio.transcript == "Well, yes."
    create = speaking_client.chat.completions.stream
    with spoken(speaking_client, create=create, script=script, audio=RAW) as stream:
        deltas = [event.chunk.choices[0].delta.to_dict() for event in stream if event.type == "chunk"]
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == "Well, yes."
    assert streamed.audio.transcript == "Well, yes."
    assert streamed.audio.data == message.audio.data
    assert (streamed.audio.sample_rate, streamed.audio.channels) == (RATE, 1)
    pieces = [delta["audio"] for delta in deltas if "audio" in delta]
    assert [list(one) for one in pieces if "data" not in one] == [
        ["id", "sample_rate", "channels"],
        ["transcript"],
        ["expires_at"],
    ]
    data = [one["data"] for one in pieces if "data" in one]
    assert len(data) >= 2
    assert "".join(data) == message.audio.data
    assert b"".join(map(base64.b64decode, data)) == base64.b64decode(message.audio.data)


def test_a_streamed_sound_that_ends_early_is_partial(speaking_client):
    """It says so with its transcript."""
    with closing(spoken(speaking_client, script=sound(20), audio=RAW, stream=True, max_completion_tokens=42)) as stream:
        said = [chunk.choices[0].delta.to_dict().get("audio", {}) for chunk in stream]
    assert [one for one in said if "transcript" in one] == [{"transcript": "", "partial": True}]


def test_a_sound_without_its_text(speaking_client):
    """``content`` is null, as at OpenAI; the transcript is there."""
    script = [*of_text("Yes."), *sound(9)]
    message = spoken(speaking_client, modalities=["audio"], script=script).choices[0].message
    assert (message.content, message.audio.transcript) == (None, "Yes.")
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(message.audio.data)))
    assert rate == RATE
    assert len(samples) >= 9


def test_an_answer_is_sent_back_as_a_turn(speaking_client):
    """With its text; a sound alone, which the server does not keep, is refused."""
    message = spoken(speaking_client, script=[*of_text("Yes."), *sound(9)]).choices[0].message
    turns = [{"role": "user", "content": "a"}, message.model_dump(exclude_none=True), {"role": "user", "content": "b"}]
    body = {"model": "speaker", "modalities": ["text", "audio"], "audio": WAV}
    assert speaking_client.chat.completions.create(messages=turns, **body).choices[0].message.audio
    turns[1] = {"role": "assistant", "audio": {"id": message.audio.id}}
    with pytest.raises(openai.BadRequestError, match="send its transcript") as caught:
        speaking_client.chat.completions.create(messages=turns, **body)
    assert caught.value.param == "messages"


REFUSED = [
    ("drawn", {"modalities": ["text", "audio"]}, "modalities", "list of 'text', 'image'"),
    ("drawn", {"modalities": ["image", "audio"]}, "modalities", "gives nothing else"),
    ("drawn", {"modalities": ["video"]}, "modalities", "gives nothing else"),
    ("drawn", {"extra_body": {"use_beam_search": True}}, "use_beam_search", "makes only text"),
    ("spoken", {"modalities": ["text", "image"]}, "modalities", "list of 'text', 'audio'"),
    ("spoken", {"audio": None}, "audio", "audio is missing"),
    ("spoken", {"audio": {"voice": "leo"}}, "audio.format", "choose one of pcm16, mp3"),
    ("spoken", {"audio": {"voice": "leo", "format": "aac"}}, "audio.format", "got 'aac'"),
    ("spoken", {"audio": {"voice": 3, "format": "wav"}}, "audio.voice", "must be text"),
    ("spoken", {"audio": {"format": "wav", "speed": 2}}, "speed", "unknown field 'speed' of audio"),
    ("spoken", {"stream": True}, "audio.format", "must be pcm16 with stream"),
]


@pytest.mark.parametrize(("asked", "body", "param", "message"), REFUSED)
def test_what_cannot_be_had_names_its_field(asked, body, param, message, drawing_client, speaking_client):
    """With 400 in OpenAI's form, streamed or not."""
    ask, client = {"drawn": (drawn, drawing_client), "spoken": (spoken, speaking_client)}[asked]
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **body)
    assert caught.value.param == param


def test_tokens_that_are_no_picture(drawing_client):
    """422, or an error at the end of a stream; the next request goes on."""
    with pytest.raises(openai.UnprocessableEntityError, match=r"tokens that are no picture or sound: .*261"):
        drawn(drawing_client, "broken")
    with (
        pytest.raises(openai.APIError, match="no picture or sound"),
        drawn(drawing_client, "broken", stream=True) as stream,
    ):
        list(stream)
    assert pictures(drawn(drawing_client).choices[0].message)


def test_errors_of_vllm_stay_its_own(drawing_client):
    """A prompt that is too long, and a model that is not served, are refused as without media."""
    for body in ({"text": "x" * 600}, {"top_p": 7}):
        found = []
        for modalities in ([], ["image"]):
            with pytest.raises(openai.BadRequestError) as caught:
                drawn(drawing_client, modalities=modalities, **body)
            found.append(caught.value.body)
        assert found[0] == found[1]


def test_chats_of_many_clients(drawing_client, speaking_client):
    """With text and media, whole and streamed, at once: each gets its own."""

    def ask(number):
        text = of_text(str(number))
        if number % 4 == 3:
            return spoken(speaking_client, script=[*text, *sound(number)]).choices[0].message.content
        if number % 4 == 2:
            return drawn(drawing_client, modalities=["text"], script=text).choices[0].message.content
        if number % 4 == 1:
            return size(*pictures(drawn(drawing_client, script=picture(number, 2)).choices[0].message))
        create = drawing_client.chat.completions.stream
        with drawn(drawing_client, create=create, script=picture(number, 2)) as stream:
            return size(*pictures(stream.get_final_completion().choices[0].message))

    numbers = range(1, 9)
    with ThreadPoolExecutor(len(numbers)) as threads:
        found = list(threads.map(ask, numbers))
    assert found == [str(number) if number % 4 > 1 else (2 * CELL, number * CELL) for number in numbers]


def test_a_client_that_goes_away_ends_its_request(drawing_server):
    """Of a chat, whole and streamed, and of the images route: the engine runs it no longer."""
    chat = {"model": "painter", "messages": [{"role": "user", "content": "slow"}], "n": 2}
    chat |= {"modalities": ["image"], "chat_template_kwargs": {"size": "20x20"}}
    image = {"prompt": "slow", "size": "40x40", "n": 2}
    sent = [(CHAT, chat), (CHAT, {**chat, "stream": True}), ("/v1/images/generations", image)]

    def await_running(count):
        wait_for(lambda: metric(drawing_server, "vllm:num_requests_running") == count, f"{count} must run", 30)

    with ExitStack() as stack:
        clients = [stack.enter_context(closing(posted(drawing_server, path, json=body))) for path, body in sent]
        await_running(6)
        for left, client in zip((4, 2, 0), clients, strict=True):
            client.close()
            await_running(left)


PLAIN = {"model": "painter", "messages": [{"role": "user", "content": "a lake"}], "seed": 3, "max_tokens": 24}
SAID = {"vllm_xargs": {"script": [*of_text("Two words"), *picture(2, 2), *of_text("!"), EOS]}}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
AS_VLLM = {
    "a picture": PLAIN,
    "text and a picture": {**PLAIN, **SAID},
    "streamed": {**PLAIN, **SAID, **STREAMED},
    "text alone": {**PLAIN, **SAID, "modalities": ["text"], "n": 2},
    "an audio field": {**PLAIN, **SAID, "audio": WAV},
    "log-probabilities": {**PLAIN, **SAID, "logprobs": True, "top_logprobs": 2},
    "a wrong type": {**PLAIN, "n": "many"},
    "an unknown model": {**PLAIN, "model": "nobody"},
    "a bad template": {**PLAIN, "chat_template": "{{"},
}


@pytest.mark.slow
def test_chats_that_ask_for_no_media_are_vllms_byte_for_byte(drawing_server, drawing_folder):
    """As of a server without our routes, but for ids and times, whole, streamed and refused."""
    own = ("-m", "vllm.entrypoints.openai.api_server", "--model")

    def answers(server):
        with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
            sent = {name: client.post(CHAT, json=body) for name, body in AS_VLLM.items()}
        return {name: (one.status_code, one.headers["content-type"], stable(one.content)) for name, one in sent.items()}

    ours = answers(drawing_server)
    with served(drawing_folder, *DRAWING, *PAINTER, command=own) as server:
        vllms = answers(server)
    assert ours == vllms
    assert {name: status for name, (status, *_) in ours.items() if status != 200} == {
        "a wrong type": 400,
        "an unknown model": 404,
        "a bad template": 400,
    }
    assert ours["streamed"][2][0] == b"Two words!"
    assert b'"content":"Two words!"' in ours["text and a picture"][2]
