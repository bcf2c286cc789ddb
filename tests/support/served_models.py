"""A model that takes any JSON, texts and pictures, and output processors whose results are none of the package's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from vllm_mmout import (
    MULTIMODAL_INPUT_REGISTRY,
    MULTIMODAL_OUTPUT_REGISTRY,
    ImageOutput,
    OutputProcessor,
    register_output_processor,
)

PROCESSORS = {
    "picture": "Picture",
    "numbers": "tensor",
    "echo": "Echo",
    "chart": "Chart",
    "painted": "Painted",
    "counted": "Counted",
    "mute": "Mute",
    "failing": "Failing",
}
"""Name for requests -> output processor, the default first."""
PLACES = 3
"""Requests that the server of tests takes at once."""
CALM = "calm"
"""A file of this name in the folder of ``MMOUT_TEST_HOLDS`` ends the mapper's waits."""
WAITS = "waits"
"""The text for which the mapper waits, and the file that it makes before."""


def mapped(data, params):
    """The numbers of a table; a picture's grey values; the letters of a text, and of anything else as JSON."""
    if isinstance(data, dict) and set(data) == {"temperature", "rain"}:
        return {"values": np.asarray([data["temperature"], data["rain"]], np.float32)}
    if hasattr(data, "read"):
        with Image.open(data) as picture:
            return {"values": np.asarray(picture.convert("L"), np.float32)}
    if data == WAITS:
        folder = Path(os.environ["MMOUT_TEST_HOLDS"])
        (folder / WAITS).touch()
        while not (folder / CALM).exists():
            time.sleep(0.05)
    if data == "nonsense":
        return 5
    if data == "raises":
        raise ZeroDivisionError("no such table")
    if data == "nan":
        return {"values": np.asarray([1, np.nan, np.inf], np.float32)}
    text = data if isinstance(data, str) else json.dumps(data)
    return {"values": np.frombuffer(text.encode(), np.uint8).astype(np.float32)}


class Letters:
    """An object that no library knows."""

    def __init__(self, values):
        self.text = bytes(values.to(torch.uint8).flatten().tolist())


class Picture(OutputProcessor):
    """One grey pixel a number."""

    modality = "image"

    def decode(self, raw, params, state=None):
        return ImageOutput(np.atleast_2d(raw.numpy()).astype(np.uint8))


class Mute(OutputProcessor):
    """Gives an object of its own, and says nothing of what it is over HTTP."""

    def decode(self, raw, params, state=None):
        return Letters(raw)


class Painted(OutputProcessor):
    """Gives a picture of Pillow's."""

    def decode(self, raw, params, state=None):
        return Image.fromarray(np.atleast_2d(raw.numpy()).astype(np.uint8)).convert("RGB")


class Counted(OutputProcessor):
    """Gives a dict, with numpy's numbers in it."""

    def decode(self, raw, params, state=None):
        return {"mean": raw.numpy().mean(), "first": raw.numpy().reshape(-1)[:2], "count": raw.numel()}


class Echo(Mute):
    """What the mapper was given, as JSON."""

    def to_response(self, output, params):
        return {"given": json.loads(output.text), "tile": params.tile}


class Chart(Mute):
    """Bytes of a kind of their own."""

    def to_response(self, output, params):
        return output.text, "text/tab-separated-values; charset=utf-8"


class Failing(Mute):
    """Says something that is no answer."""

    def to_response(self, output, params):
        return output.text


@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Failing)
@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Chart)
@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Echo)
@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Mute)
@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Counted)
@MULTIMODAL_OUTPUT_REGISTRY.register_processor(Painted)
@register_output_processor(Picture)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: mapped)
class AnyNet(nn.Module):
    """Each number times a weight, 1."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, values):
        return values * self.weight
