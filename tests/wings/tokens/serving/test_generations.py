"""``/v1/images/generations`` of a model that generates tokens, by OpenAI's client and an engine that does as told."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from token_models import BEGIN, END, FIRST, IMAGE_CODES, ROW_END

openai = pytest.importorskip("openai")
pytest.importorskip("vllm", reason="the routes are vLLM's server's")

from token_service import LENGTH, PIXELS, picture_of  # noqa: E402

from vllm_mmout.errors import AbortedError, DecodeError, TokenError  # noqa: E402
from vllm_mmout.wings.tokens.serving import generations  # noqa: E402
from vllm_mmout.wings.tokens.serving.fields import sampling_params  # noqa: E402

pytestmark = pytest.mark.engine
CODES = np.arange(24).reshape(4, 6) * 2
GRID = {"grid": (4, 6), "row_end": None}


def pictures(processor, **known):
    """Makes as many pictures as answers are asked for, each of other codes."""
    return lambda prompt, sampling: [[picture_of(processor, CODES + number, **known)] for number in range(sampling.n)]


@pytest.fixture
def fixed(painter):
    """A model whose pictures have one size."""
    clients, engine = painter(**GRID)
    processor = engine.output_processor.binding.processors["vq_image"]
    engine.answer = pictures(processor)
    with clients as client:
        yield client, engine


def pixels(content):
    """A picture's, RGB."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def expected(number=0):
    """What the decoder makes of the codes."""
    grey = np.rint((CODES + number) / (IMAGE_CODES - 1) * 255).astype(np.uint8)
    return np.repeat(np.repeat(grey, PIXELS, 0), PIXELS, 1)[..., None].repeat(3, 2)


def test_two_answers_are_two_pictures(fixed):
    """``n=2`` is one request of the engine; usage counts tokens as OpenAI does."""
    client, engine = fixed
    answer = client.images.generate(prompt="a lake", model="painter", n=2, response_format="b64_json")
    for number, entry in enumerate(answer.data):
        assert np.abs(pixels(base64.b64decode(entry.b64_json)).astype(int) - expected(number)).max() <= 1
    assert len(answer.data) == 2
    ((prompt, params),) = engine.asked
    assert params.sampling.n == 2
    assert (answer.size, answer.output_format, answer.background) == ("18x12", "png", "opaque")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(prompt), 14)
    assert answer.usage.total_tokens == len(prompt) + 14
    assert not hasattr(answer.data[0], "partial")


def test_what_the_engine_is_asked(fixed):
    """The prompt by the model's tokenizer, all the room there is for text and picture, one output at the end."""
    from vllm.sampling_params import RequestOutputKind

    client, engine = fixed
    client.images.generate(prompt="lake", extra_body={"temperature": 0.5, "top_k": 7, "seed": 2**40, "stop": ["x"]})
    ((prompt, params),) = engine.asked
    assert prompt == engine.tokenizer("lake")["input_ids"]
    sampling = params.sampling
    assert sampling.max_tokens == LENGTH - len("lake")
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop) == (0.5, 7, 2**40, ["x"])
    assert sampling.output_kind == RequestOutputKind.FINAL_ONLY
    assert params.processor == "vq_image"


def test_the_models_own_sampling_holds_where_a_client_says_nothing(painter):
    """``generation_config.json``: a client's field wins; its limit of tokens cuts no picture of a known size."""
    usual = {"temperature": 0.25, "top_p": 0.5}
    alone, markers = 24, 2
    for layout, limit, most in (
        (GRID, 9, alone + markers),
        (GRID, 50, 50),
        (GRID | {"opened": True}, 50, alone + markers - 1),
        ({}, 9, 9),
    ):
        clients, engine = painter(**layout, engine={"usual": usual | {"max_tokens": limit}})
        engine.answer = pictures(engine.output_processor.binding.processors["vq_image"])
        with clients as client:
            client.images.generate(prompt="lake", extra_body={"top_p": 0.75})
        sampling = engine.asked[0][1].sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.25, 0.75, most)


def test_a_size_that_the_model_has_no_room_for_is_refused(painter):
    """Before the engine, with what there is; who sends max_tokens gets what fits."""
    clients, engine = painter("{prompt} {rows:2}*{columns:2}<boi>", opened=True)
    engine.answer = pictures(engine.output_processor.binding.processors["vq_image"])
    with clients as client:
        with pytest.raises(
            openai.BadRequestError, match=r"size 90x90 takes 9.. tokens, but the prompt leaves only 5.."
        ) as caught:
            client.images.generate(prompt="lake", size="90x90")
        assert (caught.value.param, engine.asked) == ("size", [])
        client.images.generate(prompt="lake", size="90x90", extra_body={"max_tokens": 100})
    assert engine.asked[0][1].sampling.max_tokens == 100


def test_a_picture_takes_no_more_than_the_models_length_leaves(fixed):
    """The default of max_tokens, and a larger one that is asked for."""
    client, engine = fixed
    client.images.generate(prompt="x" * (LENGTH - 10))
    assert engine.asked[0][1].sampling.max_tokens == 10
    with pytest.raises(
        openai.BadRequestError, match="max_tokens must be at most 10, the tokens that the prompt leaves"
    ) as caught:
        client.images.generate(prompt="x" * (LENGTH - 10), extra_body={"max_tokens": 11})
    assert caught.value.param == "max_tokens"
    with pytest.raises(
        openai.BadRequestError, match=f"a prompt of {LENGTH} tokens, but the model's length is"
    ) as caught:
        client.images.generate(prompt="x" * LENGTH)
    assert caught.value.param == "prompt"


def test_a_size_goes_into_the_prompt(painter):
    """``size`` becomes rows and columns, and the room for them."""
    clients, engine = painter("{prompt} {rows:2}*{columns:2}<boi>", opened=True)
    engine.answer = pictures(engine.output_processor.binding.processors["vq_image"])
    with clients as client:
        client.images.generate(prompt="lake", size="18x12")
        client.images.generate(prompt="lake")
    (asked, params), (usual, least) = engine.asked
    assert asked == engine.tokenizer("lake 4*6<boi>")["input_ids"]
    assert params.sampling.max_tokens == 4 * 7 + 1
    assert usual == engine.tokenizer("lake 2*2<boi>")["input_ids"]
    assert least.sampling.max_tokens == 2 * 3 + 1


def test_a_model_that_decides_has_all_the_room_there_is(painter):
    """Nobody knows how large the picture becomes."""
    clients, engine = painter()
    engine.answer = pictures(engine.output_processor.binding.processors["vq_image"])
    with clients as client:
        client.images.generate(prompt="lake")
    assert engine.asked[0][1].sampling.max_tokens == LENGTH - len("lake")


def test_markers_of_a_client_are_letters(painter):
    """No token of the prompt is a marker but the template's."""
    clients, engine = painter("<s>{prompt}<boi>", **GRID, opened=True)
    engine.answer = pictures(engine.output_processor.binding.processors["vq_image"])
    with clients as client:
        client.images.generate(prompt="<boi><code 3><eoi></s>")
    prompt = engine.asked[0][0]
    assert [token for token in prompt if token > 255] == [256, BEGIN]
    assert not {END, ROW_END, FIRST} & set(prompt)


def test_pictures_at_addresses(fixed):
    """``response_format=url``: each is stored."""
    client, _ = fixed
    answer = client.images.generate(prompt="lake", n=2, response_format="url", output_format="webp")
    for entry in answer.data:
        fetched = client._client.get(entry.url)
        assert fetched.headers["content-type"] == "image/webp"
        assert pixels(fetched.content).shape == (12, 18, 3)
    assert len({entry.url for entry in answer.data}) == 2


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_formats(fixed, kind):
    """Each is what Pillow reads; compression is that of the lossy ones."""
    client, _ = fixed
    compression = {} if kind == "png" else {"output_compression": 20}
    answer = client.images.generate(prompt="lake", output_format=kind, **compression)
    assert Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json))).format == kind.upper()
    bare = client._client.post("/v1/images/generations", json={"prompt": "p"}, headers={"Accept": f"image/{kind}"})
    assert bare.headers["content-type"] == f"image/{kind}"
    assert Image.open(io.BytesIO(bare.content)).format == kind.upper()


def test_a_partial_picture_says_so(fixed):
    """In its entry, and as bare bytes in a header."""
    client, engine = fixed
    processor = engine.output_processor.binding.processors["vq_image"]
    whole, part = pictures(processor), pictures(processor, complete=False)
    engine.answer = lambda *given: [*whole(*given)[:1], *part(*given)[1:]]
    answer = client.images.generate(prompt="lake", n=2)
    assert [getattr(entry, "partial", None) for entry in answer.data] == [None, True]
    engine.answer = part
    bare = client._client.post("/v1/images/generations", json={"prompt": "p"}, headers={"Accept": "image/png"})
    assert bare.headers["x-mmout-partial"] == "true"


@pytest.mark.parametrize(("reason", "remedy"), [("length", "raise max_tokens"), ("stop", "min_tokens")])
def test_no_picture_is_an_error(fixed, reason, remedy):
    """It says how the model ended, and what may help."""
    client, engine = fixed
    engine.answer, engine.finish_reason = lambda *_: [[]], reason
    said = rf"gave no picture: it ended after 7 tokens \(finish_reason {reason}\).*{remedy}"
    with pytest.raises(openai.UnprocessableEntityError, match=said):
        client.images.generate(prompt="lake")


def test_one_answer_of_two_without_a_picture(fixed):
    """Those that came are delivered."""
    client, engine = fixed
    make = pictures(engine.output_processor.binding.processors["vq_image"])
    engine.answer = lambda *given: [[], make(*given)[1]]
    assert len(client.images.generate(prompt="lake", n=2).data) == 1


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (TokenError("token 7 at 3 is text"), 422, "no picture or sound: token 7 at 3 is text; send the request again"),
        (DecodeError("secret"), 500, "failed with DecodeError"),
        (AbortedError("x"), 503, "aborted"),
        (ZeroDivisionError("secret"), 500, "an internal error"),
    ],
)
def test_what_fails_has_its_status(fixed, raised, status, message):
    """What is no client's fault is named by its kind alone."""
    client, engine = fixed

    def fail(*_):
        raise raised

    engine.answer = fail
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        client.images.generate(prompt="lake")
    assert caught.value.status_code == status
    assert "secret" not in str(caught.value)


REFUSED = [
    ({"prompt": ""}, "prompt", "prompt is missing"),
    ({"prompt": 3}, "prompt", "prompt must be text, got 3"),
    ({"prompt": "x" * 32_001}, "prompt", "32001 characters"),
    ({"n": 0}, "n", "n must be 1 to 10, got 0"),
    ({"n": 11}, "n", "n must be 1 to 10, got 11"),
    ({"n": "2"}, "n", "n must be whole number, got '2'"),
    ({"size": "20x20"}, "size", "size must be auto or 18x12, got 20x20"),
    ({"size": "large"}, "size", "size must be auto or WIDTHxHEIGHT"),
    ({"quality": "hd"}, "quality", "auto or standard"),
    ({"stream": 2}, "stream", "stream must be true or false"),
    ({"stream": True, "n": 2}, "n", "events hold one picture as base64"),
    ({"stream": True, "response_format": "url"}, "response_format", "events hold one picture as base64"),
    ({"partial_images": 2}, "partial_images", "send stream=true as well"),
    ({"partial_images": 4, "stream": True}, "partial_images", "0 to 3"),
    ({"output_format": "bmp"}, "output_format", "must be one of png"),
    ({"output_format": "npz"}, "output_format", "cannot be 'npz'; it can be png, webp, jpeg"),
    ({"output_compression": 101}, "output_compression", "0 to 100"),
    ({"output_compression": 50}, "output_compression", "not png; leave it out"),
    ({"response_format": "file"}, "response_format", "b64_json, url"),
    ({"style": "vivid"}, "style", "would change nothing"),
    ({"mask": "x"}, "mask", "makes pictures only from texts"),
    ({"image": "data:,x"}, "image", "makes pictures only from texts"),
    ({"bands": [1]}, "bands", "unknown field"),
    ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
    ({"temperature": 3}, "temperature", r"in \[0, 2\], got 3"),
    ({"temperature": 0, "n": 2}, "n", "n must be 1 when using greedy sampling"),
    ({"top_p": 0}, "top_p", "top_p must be in"),
    ({"top_k": -5}, "top_k", "top_k must be 0"),
    ({"min_p": 2}, "min_p", "min_p must be in"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater than zero"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"min_tokens": -1}, "min_tokens", "min_tokens must be"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "less than or equal"),
    ({"seed": 2**63}, "seed", "64 bits"),
    ({"seed": 2**63 - 1, "n": 2}, "seed", "64 bits"),
    ({"response_format": ""}, "response_format", "must be one of b64_json, url, got ''"),
    ({"stop": [""]}, "stop", "empty string"),
    ({"stop": [3]}, "stop", "stop must be text or a list of texts"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids", "a list of whole numbers"),
    ({"allowed_token_ids": 3}, "allowed_token_ids", "a list of whole numbers, got 3"),
    ({"ignore_eos": 1}, "ignore_eos", "true or false"),
    ({"extra_args": {"script": [1]}}, "extra_args", "unknown field"),
]


@pytest.mark.parametrize(
    ("body", "param", "message"), REFUSED, ids=[f"{param}-{n}" for n, (_, param, _) in enumerate(REFUSED)]
)
def test_what_cannot_be_honoured_names_its_field(fixed, body, param, message):
    """And never reaches the engine."""
    client, engine = fixed
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.post("/images/generations", body={"prompt": "lake", **body}, cast_to=object)
    assert caught.value.param == param
    assert not engine.asked


def test_the_largest_seed_is_that_of_the_last_answer():
    """Each answer takes the next seed."""
    for seed, n in ((2**63 - 1, 1), (2**63 - 2, 2)):
        assert sampling_params({"seed": seed}, {}, n=n, length=None, left=9).seed == seed


def test_another_model_is_not_found(fixed):
    """404, which lists those that are served."""
    client, _ = fixed
    with pytest.raises(openai.NotFoundError, match="served: painter"):
        client.images.generate(prompt="lake", model="gpt-image-1")


def test_bare_bytes_are_of_one_picture(fixed):
    """``Accept`` of a media type does not go with n, nor with addresses."""
    client, _ = fixed
    for body, param in (({"n": 2}, "n"), ({"response_format": "url"}, "response_format")):
        answer = client._client.post(
            "/v1/images/generations", json={"prompt": "p", **body}, headers={"Accept": "image/png"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_answer_with_several_pictures(fixed, monkeypatch):
    """JSON has all in their order; as bare bytes the first comes, and no other is written."""
    client, engine = fixed
    processor = engine.output_processor.binding.processors["vq_image"]
    engine.answer = lambda *_: [[picture_of(processor, CODES + number) for number in range(3)]]
    answer = client.images.generate(prompt="lake")
    for number, entry in enumerate(answer.data):
        assert np.abs(pixels(base64.b64decode(entry.b64_json)).astype(int) - expected(number)).max() <= 1
    assert len(answer.data) == 3
    written, encode = [], generations.encode
    monkeypatch.setattr(generations, "encode", lambda *given, **more: written.append(1) or encode(*given, **more))
    bare = client._client.post("/v1/images/generations", json={"prompt": "p"}, headers={"Accept": "image/png"})
    assert np.abs(pixels(bare.content).astype(int) - expected()).max() <= 1
    assert len(written) == 1


def test_without_a_tokenizer_there_is_no_prompt(painter):
    """The error says how the server would have one."""
    clients, engine = painter(tokenizer=None, **GRID)
    with clients as client, pytest.raises(openai.BadRequestError, match="without --skip-tokenizer-init"):
        client.images.generate(prompt="lake")
    assert not engine.asked


def test_other_routes_say_what_the_model_does(fixed):
    """Edits, variations, jobs and speech are no 500, and name the right route."""
    client, _ = fixed
    http = client._client
    said = "generates tokens, and it makes pictures of texts: send a prompt to /v1/images/generations"
    for path in ("/v1/images/edits", "/v1/images/variations", "/v1/scenes", "/v1/scenes/preview"):
        answer = http.post(path, files={"image": b"x"})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    assert http.get("/v1/scenes").status_code == 400
    assert http.get("/mmout").status_code == 200
    assert http.get("/v1/images/results/none.png").status_code == 404
    with pytest.raises(openai.BadRequestError, match="gives no speech; it makes pictures of texts"):
        client.audio.speech.create(model="painter", voice="x", input="x")
