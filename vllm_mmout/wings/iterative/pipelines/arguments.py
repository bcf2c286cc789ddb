"""From the tensors and options of a request to the arguments of a pipeline."""

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
from vllm_mmout.params import OutputParams
from vllm_mmout.params_parts import OF_STEPS

STEPS: Final = "num_inference_steps"
OPTIONS: Final = ("num_inference_steps", "guidance_scale", "strength", "negative_prompt")
"""Options of a request that are arguments of the same name."""
_OF_A_RUN: Final = frozenset(
    {"self", "args", "kwargs", "generator", "output_type", "return_dict", "num_images_per_prompt", "batch_size"}
    | {"num_videos_per_prompt", "num_waveforms_per_prompt", "latents", "callback", "callback_steps", "device"}
)
_TENSORS: Final = ("embeds", "callback", "attention", "sigmas", "timesteps", "ip_adapter")
"""What the names hold of arguments that no request can say."""
LABELS: Final = "class_labels"
PICTURES: Final = ("image", "mask_image", "control_image", "reference_image", "last_image", "map")


@cache
def takes(pipeline: type) -> tuple[str, ...]:
    """The arguments of a pipeline that a request can say, in the pipeline's order."""
    named = inspect.signature(pipeline.__call__).parameters
    return tuple(name for name in named if name not in _OF_A_RUN and not any(part in name for part in _TENSORS))


@cache
def options_of(pipeline: type) -> tuple[str, ...]:
    """The options of a request that a pipeline takes."""
    known = inspect.signature(pipeline.__call__).parameters
    needs = {name: (name,) for name in OPTIONS} | {"size": ("height", "width"), "seed": ("generator",)}
    return tuple(option for option, names in needs.items() if known.keys() >= set(names))


def refuse_unknown(pipeline: type, params: OutputParams) -> None:
    """Raise OptionError, which names the option, where a request asks for what a pipeline does not take."""
    known = options_of(pipeline)
    for option in OF_STEPS:
        if getattr(params, option) is not None and option not in known:
            raise OptionError(
                f"{option} is set, and {pipeline.__name__} takes {', '.join(known) or 'none of such options'}; leave"
                " it out",
                param=option,
            )


def default_of(pipeline: type, name: str, otherwise: Any) -> Any:
    """What a pipeline takes for an argument that a request does not say."""
    known = inspect.signature(pipeline.__call__).parameters
    return known[name].default if name in known else otherwise


def arguments_of(pipeline: type, inputs: Mapping[str, Tensor], params: OutputParams) -> dict[str, Any]:
    """The arguments of ``pipeline.__call__`` for one request.

    Args:
        pipeline: the class.
        inputs: without axis 0. Texts are those of `as_bytes`; pictures uint8 [3, height, width], masks uint8
            [1, height, width], rasters float [bands, height, width]; numbers are tensors of no axis.
        params: the request's options.

    Returns:
        Them, with ``generator``, which is made of ``seed``; the random numbers are the CPU's on every device.

    Raises:
        OptionError: an option is not one of the pipeline's.
        InputError: an input is not one of the pipeline's.

    """
    refuse_unknown(pipeline, params)
    known = takes(pipeline)
    if unknown := [name for name in inputs if name not in known]:
        raise InputError(f"{pipeline.__name__} takes {', '.join(known)}, got {', '.join(unknown)}; leave it out")
    said = {name: getattr(params, name) for name in OPTIONS}
    made: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if params.sides is not None:
        made["width"], made["height"] = params.sides
    made |= {name: _value(name, tensor) for name, tensor in inputs.items()}  # the mapper knows what was asked for
    generator = torch.Generator("cpu")
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return {**made, "generator": generator}


def as_bytes(text: str) -> NDArray[np.uint8]:
    """A text as it travels, with an end, since nothing can be empty on the way."""
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
