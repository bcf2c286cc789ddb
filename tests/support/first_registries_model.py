"""A model as it was written for vLLM's first input registries; each of its functions leaves a line in a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from vllm.inputs import INPUT_REGISTRY, DummyData, InputContext
from vllm.multimodal import MULTIMODAL_REGISTRY

CALLS = "MMOUT_TEST_FIRST_REGISTRIES"
"""Environment variable that names the file."""
MOST_TOKENS = 576
"""What f says; LLaVA's number."""
DUMMY = 24, 40
"""Height and width of the dummy input that g gives."""


def note(name, told=""):
    """Leave a line: who was called, in which process, with what."""
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(f"{name} {os.getpid()} {told}\n")


def f(ctx):
    """The most tokens of one image."""
    assert isinstance(ctx, InputContext)
    note("f", ctx.get_hf_config().architectures[0])
    return MOST_TOKENS


def g(ctx, seq_len, mm_counts):
    """The largest input."""
    note("g", f"{seq_len == ctx.model_config.max_model_len} {dict(mm_counts)}")
    height, width = DUMMY
    return DummyData(None, {"image": Image.new("RGB", (width, height))})


def h(ctx, inputs):
    """Turn a picture into its negative; leave anything else."""
    picture = inputs["multi_modal_data"]["image"]
    note("h", type(picture).__name__)
    if not isinstance(picture, Image.Image):
        return inputs
    return {**inputs, "multi_modal_data": {"image": ImageOps.invert(picture)}}


class Weighted(nn.Module):
    """Each pixel times a weight a band; integers stay exact."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 3, 1, 1))

    def forward(self, pixel_values):
        note("forward", list(pixel_values.shape))
        return pixel_values * self.weight


@MULTIMODAL_REGISTRY.register_image_input_mapper()
@MULTIMODAL_REGISTRY.register_max_image_tokens(f)
@INPUT_REGISTRY.register_dummy_data(g)
@INPUT_REGISTRY.register_input_processor(h)
class FirstRegistriesNet(Weighted):
    """All four decorators of the first registries, on one class."""


def as_tensors(ctx, data):
    """An input mapper of the first registries: a context and a picture or array, to tensors by keyword."""
    assert isinstance(ctx, InputContext)
    note("mapper", type(data).__name__)
    array = np.asarray(data)
    if array.ndim == 3 and array.shape[-1] == 3:
        array = np.moveaxis(array, -1, 0)
    return {"pixel_values": torch.from_numpy(array.astype(np.float32))}


@MULTIMODAL_REGISTRY.register_input_mapper("image", as_tensors)
@MULTIMODAL_REGISTRY.register_max_multimodal_tokens("image", 12)
@INPUT_REGISTRY.register_dummy_data(g)
class FirstMapperNet(Weighted):
    """A mapper of its own, under the general names, whose first argument is the kind of input."""


@MULTIMODAL_REGISTRY.register_image_input_mapper(as_tensors)
@INPUT_REGISTRY.register_dummy_data(g)
class FirstImageMapperNet(Weighted):
    """The same under the name for images."""
