"""Fields of requests: what OpenAI's client, curl and browsers send becomes one typed request, or an error."""

from __future__ import annotations

import json
import math

import httpx
import openai
import pytest
from openai.types import image_edit_params
from sent_requests import IMAGE, Sent, answered_with, client, edited, filled, multipart, read, refusal, sent_by

from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, error_body
from vllm_mmout.serving.request.fields import (
    VARIATIONS,
    ImageRequest,
    edit_request,
    generation_request,
)

pytestmark = pytest.mark.engine


def as_variation(form) -> ImageRequest:
    """The request of a form for ``/v1/images/variations``."""
    return edit_request(form, VARIATIONS)


def test_an_edit_of_openais_client() -> None:
    """Every field that is honoured, as its own method sends it."""
    request = edited(
        image=[("a.tif", b"first"), ("b.tif", b"second")],
        prompt="where is water?",
        model="water-index",
        n=1,
        size="auto",
        quality="auto",
        output_format="webp",
        output_compression=80,
        background="opaque",
        response_format="b64_json",
        stream=True,
        partial_images=3,
        user="me",
        safety_identifier="also me",
    )
    assert [upload.name for upload in request.images] == ["a.tif", "b.tif"]
    assert request == ImageRequest(
        model="water-index",
        prompt="where is water?",
        images=request.images,
        output_format="webp",
        output_compression=80,
        background="opaque",
        stream=True,
        user="me",
        options=OutputParams(partial_images=3),
    )


def test_what_is_left_out_is_usual() -> None:
    """One image is enough; ``None`` and empty texts are not given."""
    usual = ImageRequest(images=("data:,x",))
    empty = [(name, "") for name in ("prompt", "model", "n", "stream", "tile", "output", "bands", "size", "user")]
    assert read(multipart(("image", "data:,x"))) == usual
    assert read(multipart(("image", "data:,x"), *empty)) == usual
    assert edit_request({"image": "data:,x", "prompt": None, "tile": None, "user": ""}) == usual


def test_the_largest_seed_is_taken():
    """It is taken as a number and as text. A larger seed is refused, and the error has the range."""
    largest = 2**63 - 1
    assert edit_request({"image": "data:,x", "seed": largest}).options.seed == largest
    assert read(multipart(("image", "data:,x"), ("seed", str(largest)))).options.seed == largest
    with pytest.raises(ApiError, match=f"seed must be 0 to {largest}, got {largest + 1}"):
        edit_request({"image": "data:,x", "seed": largest + 1})


@pytest.mark.parametrize("field", ["response_format", "output_format", "background", "blend"])
def test_an_empty_choice_of_json_is_refused(field):
    """Only in a form does an empty field mean that it is not set."""
    with pytest.raises(ApiError, match=f"{field} must be one of .*, got ''"):
        edit_request({"image": "data:,x", field: ""})


@pytest.mark.parametrize(
    "options",
    [
        {"bands": [2, 3, 4]},
        {"bands": ["B02", "B8A", 3, 3]},
        {"bands": [7]},
        {"bands": ["red, near infrared"]},
        {"indices": (0, 11)},
        {"processor": "classes"},
        {"processor": ["classes"]},
        {"processor": ["classes", "areas"]},
        {"nodata": -9999.0},
        {"nodata": 0},
        {"nodata": math.inf},
        {"scale": 1e-05, "offset": -0.1},
        {"scale": [1e-4, 2.5], "offset": [0]},
        {"window": [0, 128, 256, 512]},
        {"window": {"row": 0, "col": 128, "height": 256, "width": 512}},
        {"bbox": [-1.5, 40.25, 2.0, 41.0], "bbox_crs": "EPSG:4326"},
        {"resampling": "bilinear", "tile": 256, "overlap": 64, "blend": "linear"},
        {"output": "probabilities", "simplify": 0.5},
        {"bands": None, "tile": None},
        {"bands": []},
    ],
    ids=str,
)
def test_extra_body_of_openais_client_is_the_options_of_the_request(options) -> None:
    """As if they had been given in Python, sent as a form or as JSON."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    wanted = OutputParams(**given)
    assert edited(**options).options == wanted
    if options != {"bands": []} and options.get("nodata") != math.inf:
        sent = sent_by(lambda ours: ours.images.generate(prompt="water", extra_body=options))
        assert read(sent, generation_request).options == wanted


@pytest.mark.parametrize("sent_as", ["form", "json"])
def test_nodata_may_be_no_number(sent_as) -> None:
    """NaN by its name, in forms and in JSON."""
    for text in ("nan", "NaN"):
        request = edit_request({"image": "data:,x", "nodata": text}) if sent_as == "json" else filled(("nodata", text))
        assert math.isnan(request.options.nodata)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ([("bands", "2,3,4")], {"bands": (2, 3, 4)}),
        ([("bands", " 2 , B8A ")], {"bands": (2, "B8A")}),
        ([("bands", "[2, 3, 4]")], {"bands": (2, 3, 4)}),
        ([("bands", '["B02", 3]')], {"bands": ("B02", 3)}),
        ([("bands", "2"), ("bands", "3")], {"bands": (2, 3)}),
        ([("bands", "2")], {"bands": (2,)}),
        ([("bands", "B02")], {"bands": ("B02",)}),
        ([("bands[]", "2,3")], {"bands": ("2,3",)}),
        ([("processor", "classes,areas")], {"processor": ("classes", "areas")}),
        ([("processor", "classes")], {"processor": "classes"}),
        ([("scale", "0.5,2")], {"scale": (0.5, 2.0)}),
        ([("scale", "0.5")], {"scale": 0.5}),
        ([("window", "0,0,8,9")], {"window": (0, 0, 8, 9)}),
        ([("window", "[0,0,8,9]")], {"window": (0, 0, 8, 9)}),
        ([("window", '{"row":0,"col":0,"height":8,"width":9}')], {"window": (0, 0, 8, 9)}),
        ([(f"window[{side}]", "8") for side in ("row", "col", "height", "width")], {"window": (8, 8, 8, 8)}),
        ([("bbox", "1.5,2,3,4")], {"bbox": (1.5, 2.0, 3.0, 4.0)}),
        ([("tile", " 64 ")], {"tile": 64}),
        ([("nodata", "-9999")], {"nodata": -9999.0}),
    ],
    ids=str,
)  # fmt: skip
def test_lists_of_curl(fields, options) -> None:
    """With commas, as JSON, repeated, or one alone."""
    assert filled(*fields).options == OutputParams(**options)


@pytest.mark.parametrize(
    ("text", "stream"), [("true", True), ("1", True), ("false", False), ("0", False), ("True", True)]
)
def test_true_and_false_are_words_or_digits(text, stream) -> None:
    """As clients of several languages write them."""
    assert filled(("stream", text)).stream is stream


@pytest.mark.parametrize(("spelt", "known"), [("jpg", "jpeg"), ("tif", "tiff"), ("GeoTIFF", "tiff"), ("PNG", "png")])
def test_formats_have_common_names(spelt, known) -> None:
    """``jpg`` is taken for ``jpeg``."""
    assert filled(("output_format", spelt)).output_format == known


def test_images_may_come_in_several_fields_and_as_addresses() -> None:
    """As ``image``, ``image[]``, uploads or texts, but not both, as their order would be lost."""
    sent = multipart(IMAGE, ("image[]", ("b.png", b"more")), ("image", ("", b"")))
    assert [upload.name for upload in read(sent).images] == ["a.png", "b.png"]
    texts = multipart(("image[]", "data:,x"), ("image[]", "http://host/x.tif"))
    assert read(texts).images == ("data:,x", "http://host/x.tif")
    assert refusal(read, multipart(("image", ("a.png", b"")))).param == "image"
    assert refusal(read, multipart(("prompt", "x"))).param == "image"
    assert refusal(read, multipart(("image", ""), ("image", ("", b"")))).param == "image"


def test_images_of_json() -> None:
    """A text, a list, or the objects of OpenAI's own JSON."""
    assert edit_request({"image": "data:,x"}).images == ("data:,x",)
    assert edit_request({"image": ["data:,x", "data:,y"], "bands": ["2", 3]}).options.bands == ("2", 3)
    of_chats = {"type": "image_url", "image_url": {"url": "data:,y"}}
    assert edit_request({"images": [{"image_url": "data:,x"}, of_chats]}).images == ("data:,x", "data:,y")
    assert refusal(edit_request, {"images": [{"type": "text", "image_url": "data:,x"}]}).param == "images"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # OpenAI has retired its own models of this route
def test_variations_of_openais_client() -> None:
    """One image and no prompt; what its method has no argument for comes in ``extra_body``."""
    sent = sent_by(
        lambda ours: ours.images.create_variation(
            image=("a.png", b"x"), model="m", n=1, response_format="url", user="me", extra_body={"bands": [2]}
        )
    )
    request = read(sent, as_variation)
    assert (request.model, request.response_format, request.options.bands) == ("m", "url", (2,))
    for name, text in (("prompt", "x"), ("stream", "true"), ("partial_images", "1")):
        error = refusal(filled, (name, text), parse=as_variation)
        assert error.param == name
        assert "/v1/images/edits" in error.message


def test_generations_of_openais_client() -> None:
    """JSON with a prompt and without images."""
    sent = sent_by(
        lambda ours: ours.images.generate(
            prompt="a lake", model="m", n=1, output_format="png", size="auto", stream=True, partial_images=2,
            extra_body={"tile": 64},
        )
    )  # fmt: skip
    assert read(sent, generation_request) == ImageRequest(
        model="m",
        prompt="a lake",
        output_format="png",
        stream=True,
        options=OutputParams(tile=64, partial_images=2),
    )
    for body, param in (({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": "x", "image": "data:,x"}, "image")):
        assert refusal(generation_request, body).param == param
    assert refusal(generation_request, {"prompt": "x", "moderation": "low"}).param == "moderation"


def test_openais_client_is_told_which_field_is_wrong() -> None:
    """What was refused here is its own BadRequestError with ``param``."""
    error = refusal(edited, overlap=-3)
    with client(answered_with(400, error_body(error))) as ours, pytest.raises(openai.BadRequestError) as caught:
        ours.images.edit(image=b"x", prompt="")
    assert caught.value.param == "overlap"
    assert "-3" in caught.value.message


def test_a_form_of_curl_without_files() -> None:
    """``curl -d image=https://...`` is a form as well."""
    request = httpx.Request("POST", "http://server/", data={"image": "https://host/a.tif", "bands": "2,3"})
    asked = read(Sent(request.read(), dict(request.headers), "/"))
    assert (asked.images, asked.options.bands) == (("https://host/a.tif",), (2, 3))


def test_every_argument_of_openais_methods_is_known() -> None:
    """Each is taken, or refused by its name; none is "unknown"."""
    for name in image_edit_params.ImageEditParamsBase.__annotations__:
        try:
            edit_request({"image": "data:,x", name: json.loads('{"n": 1}').get(name, "auto")})
        except ApiError as error:
            assert "unknown" not in error.message  # noqa: PT017 - most of them are refused


def test_an_area_is_sent_as_json() -> None:
    """A form has its text, and JSON the object itself; ``aoi_crs`` says what the coordinates are."""
    area = {"type": "Polygon", "coordinates": [[[500000, 0], [500100, 0], [500100, 100], [500000, 0]]]}
    expected = OutputParams(aoi=area, aoi_crs="EPSG:32632")
    form = read(multipart(IMAGE, ("aoi", json.dumps(area)), ("aoi_crs", "EPSG:32632")))
    body = {"image": "data:,x", "aoi": area, "aoi_crs": "EPSG:32632"}
    assert edit_request(body).options == expected
    assert json.loads(form.options.aoi) == json.loads(expected.aoi)
