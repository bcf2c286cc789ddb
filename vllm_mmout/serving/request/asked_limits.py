"""Check the image size, number of steps and video length of a request against the server's limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import flag

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.options import ServingOptions

WIDTH, HEIGHT, FRAMES, STEPS = "width", "height", "num_frames", "num_inference_steps"
"""Keys in a request's input for the width, height, number of frames and number of steps. Diffusers uses these names."""
_USUAL_FPS: Final = 24.0


def check_request(binding: Binding, params: OutputParams, data: Any, options: ServingOptions) -> None:
    """Raise ApiError if a client asks the model for more pixels, frames or steps than the server allows."""
    fields = () if binding.inputs is None else binding.inputs.fields
    fps = getattr(binding.processors[binding.choice.pick(params.processor)[0]], "fps", None)
    check_asked(params, data, fields, fps, options)


def check_asked(
    params: OutputParams, data: Any, fields: Collection[str], fps: float | None, options: ServingOptions
) -> None:
    """Raise ApiError if ``params`` or ``data`` ask for more pixels, frames or steps than the server allows.

    Args:
        params: options of the request.
        data: input of the request; of a dict only the keys in ``fields`` are checked.
        fields: the keys that the model's input mapper takes.
        fps: frames a second of the model's videos, None if unknown.
        options: the server's limits.

    Raises:
        ApiError: 400 with the value, the limit and the flag.

    """
    given: dict[str, Any] = {}
    if isinstance(data, Mapping):
        given = {name: value for name in fields if _is_number(value := data.get(name))}
    if params.sides is not None:
        _check_pixels(*params.sides, options)
    if WIDTH in given or HEIGHT in given:  # a single side counts as a square
        width = given.get(WIDTH, given.get(HEIGHT, 0))
        _check_pixels(width, given.get(HEIGHT, width), options)
    for steps in (params.num_inference_steps, given.get(STEPS)):
        if steps is not None and steps > options.max_steps:
            raise ApiError(
                400,
                f"{STEPS} is {steps}, and this server has models take at most {options.max_steps} steps"
                f" ({flag('max_steps')}); ask for fewer",
                param=STEPS,
            )
    if FRAMES in given:
        check_seconds(given[FRAMES] / (fps or _USUAL_FPS), options, FRAMES, f"{given[FRAMES]} frames, which are ")


def check_seconds(seconds: float, options: ServingOptions, param: str = "seconds", what: str = "") -> None:
    """Raise ApiError if a requested video is longer than ``--mmout-max-seconds``.

    ``what`` is text that the error message puts before the seconds.
    """
    if seconds > options.max_seconds:
        raise ApiError(
            400,
            f"{param} is {what}{seconds:g} s, and this server has models make videos of at most"
            f" {options.max_seconds:g} s ({flag('max_seconds')}); ask for a shorter one",
            param=param,
        )


def _check_pixels(width: float, height: float, options: ServingOptions) -> None:
    if width * height > options.max_made_pixels:
        raise ApiError(
            400,
            f"size is {width}x{height}, which is {width * height} pixels, and this server has models make at most"
            f" {options.max_made_pixels} ({flag('max_made_pixels')}); ask for a smaller one",
            param="size",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
