"""Parse requests for videos, sent as a form or as JSON. The fields follow OpenAI's ``POST /v1/videos``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from vllm_mmout.messages import shown
from vllm_mmout.option import options_of, said
from vllm_mmout.params import OPTIONS, OutputParams
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.uploads import ReceivedForm
from vllm_mmout.serving.request.fields import EDITS, ImageRequest, form_images, made
from vllm_mmout.wings.jobs.server.job import AUTO, SceneInputs, VideoSettings, keep_inputs

if TYPE_CHECKING:
    from vllm_mmout.serving.inputs.sources import Sources
    from vllm_mmout.serving.inputs.uploads import Upload

ROUTE: Final = "/v1/videos"
REFERENCE: Final = "input_reference"
USUAL_FORMAT: Final = "mp4"
_SIZE: Final = re.compile(r"[1-9]\d{0,4}x[1-9]\d{0,4}", re.ASCII)


class _VideoFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields that exist only for videos."""

    seconds: Annotated[str | float | None, said("length of the video in seconds; by default the model's own.")] = None
    size: Annotated[str | None, said('WIDTHxHEIGHT in pixels, or "auto" for the model\'s own size.', max_length=20)] = (
        None
    )


_OWN: Final = options_of(_VideoFields)
_BY_ID: Final = "a video is made in the background; poll it and fetch it by its id"
_NO_VIDEO: Final = "it does not apply to videos; leave it out"
_NOT_WRITTEN: Final = "a client cannot choose where the server writes a video; fetch it by its id"
_ONE: Final = "a video is the only result of its job; leave it out"
_FEWER: Final = EDITS.without(("stream", "partial_images", "response_format"), _BY_ID, path=ROUTE)
_FEWER_STILL: Final = _FEWER.without(("path",), _NOT_WRITTEN, path=ROUTE).without(
    ("processor", "output"), _ONE, path=ROUTE
)
_PICTURES: Final = _FEWER_STILL.without(
    ("quality", "background", "tile", "overlap", "blend", "simplify"), _NO_VIDEO, path=ROUTE, apart=(REFERENCE,)
)
VIDEOS: Final = replace(_PICTURES, options={**_PICTURES.options, **_OWN})
"""All fields of a request for a video."""


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """Parsed request for a video, before the request is checked against the model."""

    image_request: ImageRequest
    """Fields of the request except `video`. ``images`` is empty, or holds the image that the video starts from."""
    video: VideoSettings

    def keep_reference(self, sources: Sources) -> SceneInputs:
        """Keep the reference image of the video open until the job ends, and return it as the job's input.

        Without a reference image, the input is empty. The call blocks.
        """
        return keep_reference(self.image_request.images, sources)


def keep_reference(images: Sequence[Upload | str], sources: Sources) -> SceneInputs:
    """Keep the reference image of a video open until the job ends, and return it as the job's input.

    Without a reference image, the input is empty. The call blocks.
    """
    return keep_inputs(images, sources) if images else SceneInputs(None, "", 0, ExitStack())


def read_video_request(body: ReceivedForm | Any) -> VideoRequest:
    """Parse the body of a request for a video. The body is a form or decoded JSON."""
    values = VIDEOS.values(body)
    return _request(values, _form_image(body) if isinstance(body, ReceivedForm) else _json_image(body))


def _form_image(form: ReceivedForm) -> tuple[Upload | str, ...]:
    for key in form.fields:
        name, _, rest = key.partition("[")
        if name == REFERENCE and rest not in ("", "image_url]"):
            raise _no_file(key)
    return form_images(form, REFERENCE, needed=False)


def _json_image(body: Mapping[str, Any]) -> tuple[str, ...]:
    reference = body.get(REFERENCE)
    if isinstance(reference, Mapping) and "image_url" not in reference:
        raise _no_file(REFERENCE)
    url = reference["image_url"] if isinstance(reference, Mapping) and len(reference) == 1 else reference
    if url is not None and not isinstance(url, str):
        message = f'{REFERENCE} must be a URL or data URL, or {{"image_url": ...}}, got {shown(reference)}'
        raise ApiError(400, message, param=REFERENCE)
    return (url,) if url else ()


def _request(values: dict[str, Any], images: tuple[Upload | str, ...]) -> VideoRequest:
    if len(images) > 1:
        raise ApiError(400, f"{len(images)} images were sent as {REFERENCE}; send only one", param=REFERENCE)
    video = VideoSettings(
        prompt=values.get("prompt", ""),
        size=_size(values.pop("size", AUTO)),
        seconds=_seconds(values.pop("seconds", AUTO)),
    )
    if not video.prompt and not images:
        raise ApiError(400, "prompt is missing; send a text that describes the video", param="prompt")
    values.setdefault("output_format", USUAL_FORMAT)
    options = made(OutputParams, values, OPTIONS)
    return VideoRequest(
        made(ImageRequest, values, ImageRequest.__struct_fields__, images=images, options=options), video
    )


def _size(text: str) -> str:
    if text != AUTO and not _SIZE.fullmatch(text):
        raise ApiError(
            400, f'size must be "auto" or WIDTHxHEIGHT, for example 832x480, got {shown(text)}', param="size"
        )
    return text


def _seconds(value: str | float) -> str:
    """Convert a video length in seconds to a string such as "5", or keep "auto".

    Raise an ApiError (400) if the length is not a positive number.
    """
    if value == AUTO:
        return AUTO
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        message = f"seconds must be a number above 0, got {shown(value)}"
        raise ApiError(400, message, param="seconds")
    return f"{seconds:g}"


def _no_file(name: str) -> ApiError:
    return ApiError(400, f"{name} has no image; send the image as a file, or its URL as image_url", param=REFERENCE)
