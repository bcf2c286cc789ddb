"""Build the `Work` of a video job: the checked request, with methods that run it and encode the video."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.asked_limits import check_seconds
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.jobs.server.job import AUTO
from vllm_mmout.wings.jobs.server.video_request import REFERENCE, USUAL_FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.service import Field, ForwardService
    from vllm_mmout.wings.jobs.server.job import VideoSettings

_PROMPT: Final = "prompt"
_IMAGE: Final = "image"


def check_videos(service: ForwardService) -> None:
    """Raise an ApiError (400) if the server's model does not produce videos."""
    if _processor(service).modality != "video":
        raise ApiError(400, service.gives, param="model")


def video_work(
    service: ForwardService,
    request: ImageRequest,
    video: VideoSettings,
    image: Any,
    name: str,
    *,
    headers: Mapping[str, str] | None = None,
) -> Work:
    """Build the `Work` of a video job: the checked request, with methods that run it and encode the video.

    Raise the errors that can be found before the model runs.

    Args:
        service: the model's service, with its input mapper and its processors.
        request: the format of the result, the options and the name of the model.
        video: the prompt, size and length of the video.
        image: an upload, a URL, or None for a video made from text alone.
        name: the id of the request in logs and traces.
        headers: headers of the trace span of the client.

    """
    if request.output_format == USUAL_FORMAT and find_spec("av") is None:
        raise ApiError(
            400,
            f"this server cannot write {USUAL_FORMAT}, which needs PyAV; {FORMATS[USUAL_FORMAT].install} there, or"
            " choose output_format webp",
            param="output_format",
        )
    extra_inputs, options = _size_and_length(service, video, request.options)
    data, field = _input(service, video.prompt, image, extra_inputs)
    request = msgspec.structs.replace(request, options=options, as_file=True)
    work = Work.of(service, request, data, name, field, trace_headers=headers)
    if service.binding.inputs is not None:
        service.binding.inputs.check_options(options)
    return work


def _processor(service: ForwardService) -> Any:
    (name,) = service.binding.choice.pick(None)[:1]
    return service.binding.processors[name]


def _size_and_length(
    service: ForwardService, video: VideoSettings, options: OutputParams
) -> tuple[dict[str, int], OutputParams]:
    """Return (extra model inputs, options) with the size and length that the client requested for a video.

    Models differ: some take the size as inputs, others as the option ``size``. The length is always an input. Raise an
    ApiError (400) if the model sets the requested size or length itself.
    """
    inputs = service.binding.inputs
    fields = () if inputs is None else inputs.fields
    extra_inputs: dict[str, int] = {}
    if video.size != AUTO:
        width, height = map(int, video.size.split("x"))
        if {"height", "width"} <= set(fields):
            extra_inputs |= {"width": width, "height": height}
        elif inputs is not None and "size" in inputs.options:
            options = msgspec.structs.replace(options, size=video.size)
        else:
            raise ApiError(400, "this model sets the size of its videos itself; leave size out", param="size")
    if video.seconds != AUTO:
        fps = getattr(_processor(service), "fps", None)
        if "num_frames" not in fields or fps is None:
            raise ApiError(400, "this model sets the length of its videos itself; leave seconds out", param="seconds")
        check_seconds(float(video.seconds), service.options)
        extra_inputs["num_frames"] = max(1, round(float(video.seconds) * fps))
    return extra_inputs, options


def _input(service: ForwardService, prompt: str, image: Any, extra_inputs: dict[str, int]) -> tuple[Any, Field]:
    """Return (model input, request field). Error messages name the field, which is "image" or "prompt".

    A mapper with named inputs, or any mapper if there are ``extra_inputs``, gets a dict. Any other mapper gets the
    image, or the prompt if there is no image.
    """
    inputs = service.binding.inputs
    opens_files = inputs is None or inputs.opens_files
    if not opens_files and isinstance(image, str):
        message = f"this model's input mapper does not open URLs; send {REFERENCE} as a file"
        raise ApiError(400, message, param=REFERENCE)
    if inputs is not None and (extra_inputs or _PROMPT in {*inputs.words, *inputs.fields}):
        values = {_PROMPT: prompt, _IMAGE: image, **extra_inputs}
        return {name: value for name, value in values.items() if value not in (None, "")}, "image"
    if image is None:
        if opens_files and (inputs is None or inputs.kind is None):
            message = f"this model makes videos from images, not from texts; send an image as {REFERENCE}"
            raise ApiError(400, message, param=REFERENCE)
        return prompt, "prompt"
    return image, "image"
