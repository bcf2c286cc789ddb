"""Convert a request's tensors and options to the arguments of a diffusers pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.params import OF_STEPS, OutputParams

STEPS: Final = "num_inference_steps"
OPTIONS: Final = ("num_inference_steps", "guidance_scale", "strength", "negative_prompt")
"""Options of a request that are passed to the pipeline as arguments of the same name."""
_OF_A_RUN: Final = frozenset(
    {"self", "args", "kwargs", "generator", "output_type", "return_dict", "num_images_per_prompt", "batch_size"}
    | {"num_videos_per_prompt", "num_waveforms_per_prompt", "latents", "callback", "callback_steps", "device"}
)
_EXCLUDED_WORDS: Final = ("embeds", "callback", "attention", "sigmas", "timesteps", "ip_adapter")
"""A request cannot set a pipeline argument if its name contains one of these words."""
LABELS: Final = "class_labels"
PICTURES: Final = ("image", "mask_image", "control_image", "reference_image", "last_image", "map")


@cache
def settable_arguments(pipeline: type) -> tuple[str, ...]:
    """Return the names of the pipeline arguments that a request can set, in the pipeline's order."""
    named = inspect.signature(pipeline.__call__).parameters
    return tuple(name for name in named if name not in _OF_A_RUN and not any(part in name for part in _EXCLUDED_WORDS))


@cache
def options_of(pipeline: type) -> tuple[str, ...]:
    """Return the names of the request options that a pipeline supports."""
    parameters = inspect.signature(pipeline.__call__).parameters
    needs = {name: (name,) for name in OPTIONS} | {"size": ("height", "width"), "seed": ("generator",)}
    return tuple(option for option, names in needs.items() if parameters.keys() >= set(names))


def refuse_unknown(pipeline: type, params: OutputParams) -> None:
    """Raise OptionError if a request sets an option that the pipeline does not support."""
    supported = options_of(pipeline)
    for option in OF_STEPS:
        if getattr(params, option) is not None and option not in supported:
            raise OptionError(
                f"{option} is set, and {pipeline.__name__} takes {', '.join(supported) or 'no such option'}; leave it"
                " out",
                param=option,
            )


def default_of(pipeline: type, name: str, fallback: Any) -> Any:
    """Return the default of the pipeline argument ``name``, or ``fallback`` if the pipeline lacks the argument."""
    parameters = inspect.signature(pipeline.__call__).parameters
    return parameters[name].default if name in parameters else fallback


def arguments_of(pipeline: type, inputs: Mapping[str, Tensor], params: OutputParams) -> dict[str, Any]:
    """Return the keyword arguments of ``pipeline.__call__`` for one request.

    Args:
        pipeline: the pipeline's class.
        inputs: tensors without a batch axis. Texts are encoded by `as_bytes`. Pictures are uint8 [3, height, width],
            masks uint8 [1, height, width], rasters float [bands, height, width]; numbers are tensors without axes.
        params: the request's options.

    Returns:
        The arguments, with a ``generator`` seeded by ``seed``. It is on the CPU, whatever the model's device.

    Raises:
        OptionError: the pipeline does not support an option.
        InputError: the pipeline does not have an argument for an input.

    """
    refuse_unknown(pipeline, params)
    names = settable_arguments(pipeline)
    if unknown := [name for name in inputs if name not in names]:
        raise InputError(f"{pipeline.__name__} takes {', '.join(names)}, got {', '.join(unknown)}; leave it out")
    options = {name: getattr(params, name) for name in OPTIONS}
    arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if params.sides is not None:
        arguments["width"], arguments["height"] = params.sides
    # The mapper has already put the steps that the request asks for among the inputs.
    arguments |= {name: _value(name, tensor) for name, tensor in inputs.items()}
    generator = torch.Generator("cpu")
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return {**arguments, "generator": generator}


def as_bytes(text: str) -> NDArray[np.uint8]:
    """Return a text as a uint8 array of its UTF-8 bytes and a final zero byte.

    Without the zero byte, an empty text would become an empty tensor, which vLLM does not pass on.
    """
    return np.frombuffer(text.encode() + b"\0", np.uint8)


def _value(name: str, tensor: Tensor) -> Any:
    if name == LABELS:
        return [int(label) for label in tensor.reshape(-1)]
    if tensor.ndim == 0:
        return tensor.item()
    if tensor.dtype == torch.uint8 and tensor.ndim == 1:
        return bytes(tensor[:-1].tolist()).decode()
    if tensor.dtype == torch.uint8 and name in PICTURES and len(tensor) in (1, 3):
        from PIL import Image

        planes = tensor.cpu().numpy()
        return Image.fromarray(planes[0] if len(planes) == 1 else np.ascontiguousarray(np.moveaxis(planes, 0, -1)))
    return tensor[None] if name in PICTURES else tensor
