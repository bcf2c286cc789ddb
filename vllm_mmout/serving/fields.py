"""The fields of OpenAI's image routes: what was sent becomes one typed request, or an error that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.params import LOCAL_ONLY, OutputParams
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.field_checks import check_fields
from vllm_mmout.serving.field_types import FIELDS, OPTIONS, from_json, from_texts, shown
from vllm_mmout.serving.multipart import MAX_FILES
from vllm_mmout.serving.uploads import Form, Upload

_IMAGE = "image"
_REFUSED: Final = {
    "mask": "the model sees the whole image; leave it out (window or bbox choose a part of the input)",
    "part": "the server cuts inputs into parts itself; leave it out",
    **dict.fromkeys(LOCAL_ONLY, "a client cannot choose where the server writes; save the answer, and leave it out"),
    **dict.fromkeys(
        (
            *("moderation", "style", "input_fidelity", "complexity", "frame_count", "frame_duration_ms", "markup"),
            "svg",
        ),
        "it would change nothing here; leave it out",
    ),
}


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for, typed and checked as far as that goes without the model.

    Args:
        model: name of the model; None: the one served.
        prompt: text beside the images.
        images: files that were uploaded, or texts: URLs, data URLs.
        output_format: "png", "webp", "jpeg", "tiff", "npz", "json"; None: the usual one of the result.
        output_compression: quality of JPEG and WebP, 0 to 100.
        background: of pictures, where nothing is known.
        response_format: whether the answer holds the result or an address of it.
        stream: whether the answer comes as events.
        partial_images: pictures of the growing result before it, 0 to 3; also in ``options``.
        user: whatever the client calls its user; used for nothing.
        options: how the input is read and what is made of it.

    """

    model: str | None = None
    prompt: str | None = None
    images: tuple[Upload | str, ...] = ()
    output_format: str | None = None
    output_compression: int | None = None
    background: Literal["auto", "transparent", "opaque"] = "auto"
    response_format: Literal["b64_json", "url"] = "b64_json"
    stream: bool = False
    partial_images: int = 0
    user: str | None = None
    options: OutputParams = OutputParams()


def edit_request(form: Form) -> ImageRequest:
    """The request of a form for ``/v1/images/edits``.

    Raises:
        ApiError: a field is missing, unknown, wrong, or does not go with another (400).

    """
    return _request(_from_form(form, _EDITS), _some(_form_images(form)))


def variation_request(form: Form) -> ImageRequest:
    """The request of a form for ``/v1/images/variations``; as `edit_request`, without a prompt or events."""
    return _request(_from_form(form, _VARIATIONS), _some(_form_images(form)))


def edit_request_json(body: Any) -> ImageRequest:
    """The request of a JSON body for ``/v1/images/edits``.

    Args:
        body: its "image" is a URL or a data URL, or a list of them; OpenAI's "images", a list of {"image_url": ...}, is
            taken as well.

    Raises:
        ApiError: as `edit_request`.

    """
    given = _from_object(body, _EDITS)
    return _request(given, _some(_json_images(body)))


def generation_request(body: Any) -> ImageRequest:
    """The request of a JSON body for ``/v1/images/generations``.

    Args:
        body: an object with "prompt".

    Raises:
        ApiError: as `edit_request`.

    """
    asked = _request(_from_object(body, _GENERATIONS))
    if not asked.prompt:
        raise ApiError(400, "prompt is missing; send the text that the image is made of", param="prompt")
    return asked


def pooling_request(body: Any) -> ImageRequest:
    """The request of a JSON body with "data" for ``/pooling``, whose data is no field of it.

    Raises:
        ApiError: as `edit_request`.

    """
    return _request(_from_object(body, _POOLING))


def scene_request(form: Form) -> ImageRequest:
    """The request of a form for ``/v1/scenes``; as `edit_request`, without events."""
    return _request(_from_form(form, _SCENES), _some(_form_images(form)))


def scene_request_json(body: Any) -> ImageRequest:
    """The request of a JSON body for ``/v1/scenes``; as `edit_request_json`, without events."""
    given = _from_object(body, _SCENES)
    return _request(given, _some(_json_images(body)))


class _Route(msgspec.Struct, frozen=True):
    path: str
    without: dict[str, str]
    """Fields that this route alone does not take, and what to do instead."""
    images: tuple[str, ...]
    """The fields of images."""


_EDITS = _Route("/v1/images/edits", {}, (_IMAGE, "images"))
_USE_EDITS = "use /v1/images/edits"
_VARIATIONS = _Route(
    "/v1/images/variations", dict.fromkeys(("prompt", "stream", "partial_images"), _USE_EDITS), (_IMAGE,)
)
_GENERATIONS = _Route("/v1/images/generations", dict.fromkeys((_IMAGE, "images"), _USE_EDITS), ())
_SCENES = _Route(
    "/v1/scenes",
    dict.fromkeys(("stream", "partial_images", "response_format"), "a job is looked at and fetched by its id"),
    (_IMAGE, "images"),
)
_POOLING = _Route(
    "/pooling",
    dict.fromkeys(
        ("prompt", "stream", "partial_images", "response_format", "n", "size", "quality"), "use /v1/images/edits"
    ),
    ("data",),
)


def _from_form(form: Form, route: _Route) -> dict[str, Any]:
    """The typed values of a form's fields."""
    for key, uploads in form.files.items():
        name = key.partition("[")[0]
        if name != _IMAGE and any(upload.size or upload.name for upload in uploads):
            _check_known(name, route)
            raise ApiError(400, f"{name} is sent as a file; send it as text", param=name)
    grouped: dict[str, dict[str, Sequence[str]]] = {}
    for key, texts in form.fields.items():
        name, bracket, rest = key.partition("[")
        if name != _IMAGE:
            _check_known(name, route)
            grouped.setdefault(name, {})[bracket + rest] = texts
    return {name: from_texts(name, texts) for name, texts in grouped.items()}


def _from_object(body: Any, route: _Route) -> dict[str, Any]:
    """The typed values of a JSON object."""
    if not isinstance(body, Mapping):
        raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
    given = {}
    for name, value in body.items():
        if name in route.images:
            continue
        _check_known(name, route)
        given[name] = None if value is None else from_json(name, value)
    return given


def _check_known(name: str, route: _Route) -> None:
    if name in route.without:
        raise ApiError(400, f"{name} is not supported by {route.path}; {route.without[name]}", param=name)
    if name in _REFUSED:
        raise ApiError(400, f"{name} is not supported: {_REFUSED[name]}", param=name)
    if name in FIELDS:
        return
    known = [*route.images[:1], *(field for field in FIELDS if field not in route.without)]
    near = difflib.get_close_matches(name[:40], known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ApiError(400, f"unknown field {shown(name)}{hint} (known: {', '.join(known)})", param=name[:100])


def _form_images(form: Form) -> tuple[Upload | str, ...]:
    uploads = [
        upload
        for key, several in form.files.items()
        for upload in several
        if key.partition("[")[0] == _IMAGE and (upload.size or upload.name)
    ]
    for upload in uploads:
        if not upload.size:
            raise ApiError(400, f"the file {shown(upload.name)} is empty; send an image", param=_IMAGE)
    texts = [
        text for key, several in form.fields.items() if key.partition("[")[0] == _IMAGE for text in several if text
    ]
    if uploads and texts:
        # A form keeps no order between the two, and the order of images means something.
        raise ApiError(400, "image is sent as files and as addresses; send all of them in one way", param=_IMAGE)
    return tuple(uploads or texts)


def _json_images(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = [(name, body[name]) for name in _EDITS.images if body.get(name) is not None]
    if len(given) > 1:
        raise ApiError(400, "image and images are both set; send one of them", param="images")
    images = []
    for name, value in given:
        for image in value if isinstance(value, list) else [value]:
            address = image.get("image_url") if isinstance(image, Mapping) and len(image) == 1 else image
            if not isinstance(address, str):
                raise ApiError(
                    400, f"{name} must be a URL or data URL, or a list of them, got {shown(image)}", param=name
                )
            images.append(address)
    return tuple(image for image in images if image)


def _some(images: Sequence[Upload | str]) -> tuple[Upload | str, ...]:
    """The images of a request that needs one."""
    if not images:
        raise ApiError(400, "no image was sent; send a file as image, or a URL or data URL", param=_IMAGE)
    if len(images) > MAX_FILES:
        raise ApiError(400, f"{len(images)} images were sent, and {MAX_FILES} are taken; send fewer", param=_IMAGE)
    return tuple(images)


def _request(given: Mapping[str, Any], images: tuple[Upload | str, ...] = ()) -> ImageRequest:
    """The request of typed values; None among them is what was not given."""
    fields = {name: value for name, value in given.items() if value is not None}
    check_fields(fields)
    partial_images = fields.get("partial_images", 0)
    try:
        options = OutputParams(
            partial_images=partial_images, **{name: fields[name] for name in OPTIONS if name in fields}
        )
    except OptionError as error:
        raise api_error(error) from None
    return ImageRequest(
        images=images,
        options=options,
        **{name: fields[name] for name in ImageRequest.__struct_fields__ if name in fields},
    )
