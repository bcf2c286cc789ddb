"""A model of a text, or of a text beside an image, that gives frames of the size and number that are asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, OutputParams, register_output_processor
from vllm_mmout.errors import InputError
from vllm_mmout.processors import VideoProcessor

FPS = 12
SIZE = (48, 64)
FRAMES = 6
FAILS = "fails"
ANY = OutputParams()
WAITS = "waits"
"""A text for which the model takes until there is a file of this name beside its config.json."""


class Mapper:
    """Numbers of a text and an image, and zeros for each frame."""

    fields = ("prompt", "image", "num_frames", "height", "width")
    words = ("prompt",)
    opens_files = True

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, data, params: OutputParams):
        """Map one request."""
        said = dict(data)
        prompt = said.get("prompt", "")
        if prompt == FAILS:
            raise InputError("this text cannot be filmed; write another one")
        while prompt == WAITS and not Path(self.folder, WAITS).exists():
            time.sleep(0.02)
        colour = np.array([len(prompt) % 7, sum(prompt.encode()) % 11, len(prompt.split())], np.float32) / 11
        if params.seed is not None:
            colour = colour + np.float32(params.seed % 10) / 20
        if "image" in said:
            with Image.open(said["image"]) as picture:
                colour = np.asarray(picture.convert("RGB"), np.float32).mean((0, 1)) / 255
        height, width = said.get("height", SIZE[0]), said.get("width", SIZE[1])
        return {"colour": colour, "frames": np.zeros((said.get("num_frames", FRAMES), height, width), np.float32)}


@register_output_processor(VideoProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: Mapper(config.get("folder", "")))
class MovingNet(nn.Module):
    """A colour that changes along the rows, the columns and the frames, times a weight of 1."""

    takes = ("seed",)

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, colour, frames):
        """Frames [n, frames, 3, height, width] of 0 to 1."""
        count, height, width = frames.shape[1:]
        time_, row, col = (torch.linspace(0, 1, side) for side in (count, height, width))
        shade = (time_[:, None, None, None] + row[:, None] + col) / 3
        return (colour[:, None, :, None, None] * self.weight + shade) / 2 + 0 * frames[:, :, None]


def write_folder(folder):
    """The folder of the model."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["MovingNet"],
        "model_type": "mmout",
        "dtype": "float32",
        "fps": FPS,
        "folder": str(folder),
        "mmout": {"model": "moving_model:MovingNet"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.ones(1)}, folder / "model.safetensors")
    return str(folder)


def frames_of(params=ANY, **said):
    """The frames that the model gives for a request, by plain PyTorch: uint8 [frames, height, width, 3]."""
    mapped = {name: torch.as_tensor(value)[None] for name, value in Mapper("")(said, params).items()}
    made = MovingNet({})(**mapped)[0]
    return (made * 255).round().to(torch.uint8).movedim(1, 3).numpy()
