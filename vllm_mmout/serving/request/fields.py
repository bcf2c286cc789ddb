"""Fields of the image routes: parse them from forms and JSON, check them, and describe them in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from vllm_mmout.geo import in_bucket
from vllm_mmout.messages import shown, unknown
from vllm_mmout.option import Option, options_of, said
from vllm_mmout.params import LOCAL_ONLY, OutputParams
from vllm_mmout.params import OPTIONS as OF_PARAMS
from vllm_mmout.serving.errors import ApiError, api_error, client_errors
from vllm_mmout.serving.inputs.uploads import ReceivedForm, Upload
from vllm_mmout.serving.request.body import MAX_FILES
from vllm_mmout.serving.response.format_choice import SERVERS, FormatChoice, check_beside

T = TypeVar("T")
USELESS: Final = dict.fromkeys(
    (
        *("moderation", "style", "input_fidelity", "complexity", "frame_count", "frame_duration_ms", "markup"),
        "svg",
    ),
    "it would change nothing here; leave it out",
)
"""Maps each field of OpenAI's API that this server could only ignore to the reason for refusing the field."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Request fields that one route accepts, with methods that parse and check them."""

    path: str
    """Name of the route in error messages, such as "/v1/images/edits" or "this route"."""
    options: Mapping[str, Option]
    refused: Mapping[str, str]
    """Maps each refused field to the end of its error message, with the reason and advice for the client."""
    apart: tuple[str, ...] = ()
    """Names of fields that this object accepts but leaves to the route to parse, such as ``image``."""
    later: Collection[str] = ()
    """Names of fields whose values are checked later, when `OutputParams` or sampling params are created."""
    where: str = ""
    """Text that follows the name of an unknown field in its error message, such as " in data"."""

    def without(self, names: Iterable[str], why: str, *, path: str, apart: tuple[str, ...] = ()) -> Fields:
        """Return a copy of this object that refuses the fields ``names``. Error messages give the reason ``why``."""
        left = {name: option for name, option in self.options.items() if name not in set(names)}
        return Fields(path, left, {**self.refused, **dict.fromkeys(names, why)}, apart, self.later)

    def values(self, body: ReceivedForm | Any) -> dict[str, Any]:
        """Parse a form or a JSON object into typed field values. Empty fields are left out."""
        return self.of_form(body) if isinstance(body, ReceivedForm) else self.of_object(body)

    def of_form(self, form: ReceivedForm) -> dict[str, Any]:
        """Parse a form into typed field values. Empty fields are left out."""
        for key, uploads in form.files.items():
            name = key.partition("[")[0]
            if name not in self.apart and any(upload.size or upload.name for upload in uploads):
                self.check_known(name)
                raise ApiError(400, f"{name} is sent as a file; send it as text", param=name)
        grouped: dict[str, dict[str, Sequence[str]]] = {}
        for key, texts in form.fields.items():
            name, bracket, rest = key.partition("[")
            if name not in self.apart:
                self.check_known(name)
                grouped.setdefault(name, {})[bracket + rest] = texts
        return self._given(grouped, Option.from_texts)

    def of_object(self, body: Any) -> dict[str, Any]:
        """Parse a JSON object into typed field values. Null and empty fields are left out."""
        if not isinstance(body, Mapping):
            raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
        for name in body:
            if name not in self.apart:
                self.check_known(name)
        given = {name: value for name, value in body.items() if name not in self.apart and value is not None}
        return self._given(given, Option.from_json)

    def check_known(self, name: str) -> None:
        """Raise ApiError if the route does not accept the field ``name``."""
        if name in self.refused:
            raise ApiError(400, f"{name} is not supported by {self.path}: {self.refused[name]}", param=name)
        if name not in self.options:
            raise api_error(unknown(name, [*self.apart, *self.options], kind="field", where=self.where))

    def schema(self, *required: str, **more: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of the route's request body. Keyword arguments add or replace schemas of fields."""
        schemas = {name: option.schema for name, option in self.options.items()}
        fields = {**more, **schemas, **{name: schema for name, schema in more.items() if name in schemas}}
        return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}

    def _given(self, values: Mapping[str, Any], read: Callable[[Option, Any], Any]) -> dict[str, Any]:
        with client_errors():
            typed = {name: read(self.options[name], value) for name, value in values.items()}
            return {
                name: value if name in self.later else self.options[name].checked(value)
                for name, value in typed.items()
                if value is not None
            }


def made(kind: Callable[..., T], given: Mapping[str, Any], names: Iterable[str], **more: Any) -> T:
    """Create a ``kind`` object from the fields of ``given`` that ``names`` lists. Raise ApiError for invalid values."""
    with client_errors():
        return kind(**{name: given[name] for name in names if name in given}, **more)


_IMAGE = "image"
_NAME = 512
"""Maximum number of characters in the name of a model or user."""


class PictureFields(FormatChoice, frozen=True, kw_only=True):
    """Fields of OpenAI's API that every image route accepts. The field ``user`` is accepted and ignored."""

    model: Annotated[str | None, said("served name; the server's model by default.", max_length=_NAME)] = None
    prompt: Annotated[
        str | None, said("text beside the images, or that they are made of.", max_length=32_000, verbatim=True)
    ] = None
    user: Annotated[str | None, said("the client's name for its user.", max_length=_NAME)] = None
    response_format: Annotated[
        Literal["b64_json", "url"], said("whether the answer holds the result, or an address of it.")
    ] = "b64_json"


class ImageRequest(PictureFields, frozen=True, kw_only=True):
    """A client's request for images, with typed fields. All checks that do not need the model are already done."""

    images: tuple[Upload | str, ...] = ()
    """Input images of the request: uploaded files, URLs or data URLs."""
    stream: Annotated[bool, said("whether the answer comes as events.")] = False
    options: OutputParams = OutputParams()
    """Options for the engine, which set how the input is read and which result is made."""


class IgnoredFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of OpenAI's API that are validated and then ignored."""

    safety_identifier: Annotated[str | None, said("the client's name for its user.", max_length=_NAME)] = None
    quality: Annotated[Literal["auto", "standard"], said("of pictures.", why="this model has one quality")] = "auto"
    n: Annotated[Literal[1], said("how many answers.", why="this model gives the same each time")] = 1


OPTIONS: Final = {name: option for name, option in OF_PARAMS.items() if name not in {*LOCAL_ONLY, "partial_images"}}
"""Fields of `OutputParams` that a client may set in a request, by name."""
FIELDS: Final = {
    **options_of(ImageRequest, without=("images", "options", *SERVERS)),
    **options_of(IgnoredFields),
    "path": Option(
        "path",
        str,
        None,
        said(
            "address in a bucket, below one that the server writes to, of the file to write the result to, as"
            " s3://bucket/out/mask.tif. The answer names it as `url`."
        ),
    ),
    "partial_images": OF_PARAMS["partial_images"],
    **OPTIONS,
}
"""All request fields of the image routes except the images, by name."""
_REFUSED: Final = {
    "mask": "the model sees the whole image; leave it out (window, bbox or aoi choose a part of the input)",
    "part": "the server cuts inputs into parts itself; leave it out",
    **dict.fromkeys(LOCAL_ONLY - {"path"}, "a client cannot choose what stays with the server; leave it out"),
    **USELESS,
}


def check_format(given: Mapping[str, Any]) -> None:
    """Raise ApiError if the requested file format does not support the requested quality or background."""
    if chosen := given.get("output_format"):
        with client_errors():
            check_beside(chosen, given.get("output_compression"), given.get("background", "auto"))


_NOT_WRITTEN: Final = "a client cannot choose where the server writes; save the answer, or use /v1/images/edits"
_NOT_WITH_PATH: Final = ("stream", "response_format", "output_format", "output_compression")
"""Fields that cannot be combined with the field ``path``, which makes the server write the result to a bucket."""
_EVERY: Final = Fields("this route", FIELDS, _REFUSED, later=OF_PARAMS)
_USE_EDITS: Final = "use /v1/images/edits"
_EVENTS: Final = ("stream", "partial_images")
EDITS: Final = _EVERY.without((), "", path="/v1/images/edits", apart=(_IMAGE, "images"))
_FEWER: Final = ("prompt", "path", *_EVENTS)
VARIATIONS: Final = _EVERY.without(_FEWER, _USE_EDITS, path="/v1/images/variations", apart=(_IMAGE,))
GENERATIONS: Final = _EVERY.without((_IMAGE, "images", "path"), _USE_EDITS, path="/v1/images/generations")
POOLING: Final = _EVERY.without(
    ("prompt", "each_day", *_EVENTS, "response_format", "n", "quality"), _USE_EDITS, path="/pooling"
).without(("path",), _NOT_WRITTEN, path="/pooling", apart=("data",))


def edit_request(body: ReceivedForm | Any, fields: Fields = EDITS) -> ImageRequest:
    """Parse a form or a JSON object with images into an `ImageRequest`.

    JSON has URLs in "image", or OpenAI's "images", a list of {"image_url": ...}.
    """
    return request_of(fields.values(body), images_of(body))


def generation_request(body: Any) -> ImageRequest:
    """Parse the JSON body of ``/v1/images/generations``. Raise ApiError if the prompt is missing."""
    asked = request_of(GENERATIONS.of_object(body))
    if not asked.prompt:
        raise ApiError(400, "prompt is missing; send the text that the image is made of", param="prompt")
    return asked


def pooling_request(body: Any) -> ImageRequest:
    """Parse the options in the JSON body of ``/pooling``. The caller reads the field ``data`` itself."""
    return request_of(POOLING.of_object(body))


def request_of(given: Mapping[str, Any], images: tuple[Upload | str, ...] = ()) -> ImageRequest:
    """Create an `ImageRequest` from parsed field values and images. Raise ApiError if fields contradict each other."""
    check_format(given)
    if given.get("partial_images") and not given.get("stream"):
        raise ApiError(400, "partial_images are sent as events; send stream=true as well", param="partial_images")
    if given.get("stream") and given.get("response_format") == "url":
        message = "events hold the image itself; leave response_format out, or stream"
        raise ApiError(400, message, param="response_format")
    _check_path(given)
    options = made(OutputParams, given, OF_PARAMS)
    return made(ImageRequest, given, ImageRequest.__struct_fields__, images=images, options=options)


def images_of(body: ReceivedForm | Any) -> tuple[Upload | str, ...]:
    """Return the images of a form or JSON body, as uploaded files or URLs."""
    return form_images(body) if isinstance(body, ReceivedForm) else json_images(body)


def _check_path(given: Mapping[str, Any]) -> None:
    """Raise ApiError if ``path`` is not an address in a bucket, or conflicts with another field of the request."""
    path = given.get("path")
    if path is None:
        return
    if not in_bucket(path):
        message = "path must be an address in a bucket: a client cannot choose where the server writes on its disks"
        raise ApiError(400, f"{message}; save the answer, and leave it out", param="path")
    if given.get("each_day"):
        raise ApiError(400, "path names one file, and each_day makes several; leave path out", param="path")
    for name in _NOT_WITH_PATH:
        if given.get(name):
            message = f"path says where the result goes, and by its suffix in which format; leave {name} out, or path"
            raise ApiError(400, message, param=name)


def form_images(form: ReceivedForm, name: str = _IMAGE, *, needed: bool = True) -> tuple[Upload | str, ...]:
    """Return the images in the form field ``name``, as uploaded files or as URLs. Raise ApiError if there are both."""
    uploads = [
        upload
        for key, several in form.files.items()
        for upload in several
        if key.partition("[")[0] == name and (upload.size or upload.name)
    ]
    for upload in uploads:
        if not upload.size:
            raise ApiError(400, f"the file {shown(upload.name)} is empty; send an image", param=name)
    texts = [text for key, several in form.fields.items() if key.partition("[")[0] == name for text in several if text]
    if uploads and texts:
        # A form does not keep the order of files and texts, and the order of images matters.
        raise ApiError(400, f"{name} is sent as files and as addresses; send all of them in one way", param=name)
    return _some_images(uploads or texts) if needed else tuple(uploads or texts)


def json_images(body: Mapping[str, Any]) -> tuple[Upload | str, ...]:
    """Return the image URLs in a JSON body. Raise ApiError for a body without images."""
    given = [(name, body[name]) for name in EDITS.apart if body.get(name) is not None]
    if len(given) > 1:
        raise ApiError(400, "image and images are both set; send one of them", param="images")
    images = []
    for name, value in given:
        for image in value if isinstance(value, list) else [value]:
            address = _address(image) if isinstance(image, Mapping) else image
            if not isinstance(address, str):
                raise ApiError(
                    400, f"{name} must be a URL or data URL, or a list of them, got {shown(image)}", param=name
                )
            images.append(address)
    return _some_images([image for image in images if image])


def _address(image: Mapping[str, Any]) -> Any:
    """Return the URL in an image object of OpenAI's API. Return an object of another form unchanged."""
    if not image.keys() <= {"type", "image_url"} or image.get("type", "image_url") != "image_url":
        return image
    address = image.get("image_url")
    return address.get("url") if isinstance(address, Mapping) and address.keys() == {"url"} else address


def _some_images(images: Sequence[Upload | str]) -> tuple[Upload | str, ...]:
    """Return the images as a tuple. Raise ApiError if the list is empty or exceeds `MAX_FILES`."""
    if not images:
        raise ApiError(400, "no image was sent; send a file as image, or a URL or data URL", param=_IMAGE)
    if len(images) > MAX_FILES:
        raise ApiError(400, f"{len(images)} images were sent, and {MAX_FILES} are taken; send fewer", param=_IMAGE)
    return tuple(images)
