"""Models of authors, for tests through the real engine: right ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.models.inputs.mapper import RasterMapper

THREE_BANDS = RasterMapper("three-bands", ("red", "green", "blue"), 64)


def whole_numbers(module):
    """Make a module's weights small whole numbers: sums of whole pixels are then exact, in whatever order."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))


class StemAndHead(nn.Module):
    """Pixels to embeddings to logits; takes either of the two. Keeps what its forward was called with."""

    calls: ClassVar[list[tuple[str, torch.dtype, int]]] = []

    def __init__(self, config):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 2, 1)
        whole_numbers(self)

    def embed(self, pixel_values):
        """The embeddings of pixels."""
        return self.stem(pixel_values.float())

    def forward(self, pixel_values=None, image_embeds=None):
        given = {"pixel_values": pixel_values, "image_embeds": image_embeds}
        self.calls.extend((name, one.dtype, len(one)) for name, one in given.items() if one is not None)
        return self.head(self.embed(pixel_values) if image_embeds is None else image_embeds)


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class MappedNet(StemAndHead):
    """With a mapper of its own."""


class UnmappedNet(StemAndHead):
    """With the image processor of its folder."""


class SeveralNet(MappedNet):
    """Gives two tensors of different ranks."""

    def forward(self, pixel_values=None, image_embeds=None):
        logits = super().forward(pixel_values, image_embeds)
        return {"logits": logits, "sums": logits.sum(dim=(2, 3))}


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class SoftmaxNet(nn.Module):
    """Convolution, linear layer and softmax of real numbers, whose last bits depend on what is computed together.

    It says so: "call" counts its forwards, "place" is a request's row there, "threads" how many computed it.
    """

    def __init__(self, config):
        super().__init__()
        self.calls = 0
        self.convolution = nn.Conv2d(3, 24, 3, padding=1)
        self.linear = nn.Linear(24, 17)

    def logits(self, pixel_values):
        """Class probabilities of pixels."""
        features = self.convolution(pixel_values.to(self.convolution.weight.dtype)).relu()
        return self.linear(features.movedim(1, -1)).softmax(dim=-1)

    def forward(self, pixel_values):
        self.calls += 1
        count = len(pixel_values)
        return {
            "logits": self.logits(pixel_values),
            "call": torch.full((count,), self.calls),
            "place": torch.arange(count),
            "threads": torch.full((count,), torch.get_num_threads()),
        }
