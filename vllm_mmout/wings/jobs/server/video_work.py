"""What a model does for a request of a video: its input, in the form that its mapper takes, and its options."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.asked_limits import check_seconds
from vllm_mmout.serving.response.encode import FormatChoice
from vllm_mmout.serving.work import Field, Work
from vllm_mmout.wings.jobs.server.job import AUTO
from vllm_mmout.wings.jobs.server.video_request import REFERENCE, USUAL_FORMAT

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.service import ForwardService
    from vllm_mmout.wings.jobs.server.job import VideoAsked
    from vllm_mmout.wings.jobs.server.kept_request import KeptRequest

_PROMPT: Final = "prompt"
_IMAGE: Final = "image"


def check_videos(service: ForwardService) -> None:
    """Refuse a server whose model gives no videos."""
    if _processor(service).modality != "video":
        raise ApiError(400, service.gives, param="model")


def video_work(
    service: ForwardService, asked: ImageRequest | KeptRequest, video: VideoAsked, image: Any, name: str
) -> Work:
    """What a job does, checked as far as that goes before it runs; ``image`` is an upload, an address, or None."""
    if asked.output_format == USUAL_FORMAT and find_spec("av") is None:
        raise ApiError(
            400,
            f"this server cannot write {USUAL_FORMAT}, which needs PyAV; {FORMATS[USUAL_FORMAT].install} there, or"
            " choose output_format webp",
            param="output_format",
        )
    form = FormatChoice(asked.output_format, asked.output_compression, as_file=True)
    beside, options = _chosen(service, video, asked.options)
    data, field = _input(service, video.prompt, image, beside)
    work = Work(service, data, options, form, name, service.adapter(asked.model), field).check()
    if service.binding.inputs is not None:
        service.binding.inputs.check_options(options)
    return work


def _processor(service: ForwardService) -> Any:
    (name,) = service.binding.choice.pick(None)[:1]
    return service.binding.processors[name]


def _chosen(service: ForwardService, video: VideoAsked, options: OutputParams) -> tuple[dict[str, int], OutputParams]:
    """Size and length as the model's mapper takes them, beside its input, or as options of the request."""
    inputs = service.binding.inputs
    fields = () if inputs is None else inputs.fields
    beside: dict[str, int] = {}
    if video.size != AUTO:
        width, height = map(int, video.size.split("x"))
        if {"height", "width"} <= set(fields):
            beside |= {"width": width, "height": height}
        elif inputs is not None and "size" in inputs.options:
            options = msgspec.structs.replace(options, size=video.size)
        else:
            raise ApiError(400, "this model makes videos of a size of its own; leave size out", param="size")
    if video.seconds != AUTO:
        fps = getattr(_processor(service), "fps", None)
        if "num_frames" not in fields or fps is None:
            raise ApiError(400, "this model makes videos of a length of its own; leave seconds out", param="seconds")
        check_seconds(float(video.seconds), service.options)
        beside["num_frames"] = max(1, round(float(video.seconds) * fps))
    return beside, options


def _input(service: ForwardService, prompt: str, image: Any, beside: dict[str, int]) -> tuple[Any, Field]:
    """The input, and the field of a request that it stands for.

    A mapper that takes a text beside an image gets a dict; one that takes one of the two gets that.
    """
    inputs = service.binding.inputs
    files = inputs is None or inputs.opens_files
    if not files and isinstance(image, str):
        message = f"this model's input mapper opens no addresses; send {REFERENCE} as a file"
        raise ApiError(400, message, param=REFERENCE)
    if inputs is not None and (beside or _PROMPT in {*inputs.words, *inputs.fields}):
        said = {_PROMPT: prompt, _IMAGE: image, **beside}
        return {name: value for name, value in said.items() if value not in (None, "")}, "image"
    if image is None:
        if files and (inputs is None or inputs.kind is None):
            message = f"this model makes videos of images, not of texts; send one as {REFERENCE}"
            raise ApiError(400, message, param=REFERENCE)
        return prompt, "prompt"
    return image, "image"
