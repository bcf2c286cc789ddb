"""Models of authors with one thing wrong, for tests of what is said about it."""

from __future__ import annotations

import numpy as np
import torch
from models_for_tests import THREE_BANDS, whole_numbers
from processors_for_tests import UnreadableError
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.tensor_spec import TensorSpec

register_input_mapper = MULTIMODAL_INPUT_REGISTRY.register_input_mapper


SATURATED = torch.finfo(torch.float32).max
"""The value that `RightNet` refuses."""


class SaturatedError(InputError):
    """An author's own, made of something else than a message."""

    def __init__(self, pixel_values):
        super().__init__(f"{int((pixel_values == SATURATED).sum())} pixels are saturated; mask them")


@register_input_mapper(lambda config: THREE_BANDS)
class RightNet(nn.Module):
    """Nothing is wrong with it; the others are made of it.

    Its forward fails on a negative pixel, below -1 with an error that has no message, and refuses a saturated one.
    """

    def __init__(self, config):
        super().__init__()
        self.head = nn.Conv2d(3, 2, 3, padding=1)
        self.register_buffer("steps", torch.tensor(0))
        whole_numbers(self)

    def forward(self, pixel_values):
        if (pixel_values.float() < -1).any():  # for bytes, -1 itself would become 255
            raise UnreadableError
        if (pixel_values < 0).any():
            raise ValueError("a pixel is negative")
        if (pixel_values == SATURATED).any():
            raise SaturatedError(pixel_values)
        return self.head(pixel_values.float())


class RaisesInInit(RightNet):
    """Asks for an entry that config.json has not."""

    def __init__(self, config):
        super().__init__(config)
        self.classes = config["classes"]


class RaisesOnLarge(RightNet):
    """Fails on its dummy input, which is of the largest size."""

    def forward(self, pixel_values):
        if pixel_values.shape[-1] == 64:
            raise ValueError("too large for me")
        return super().forward(pixel_values)


class GivesList(RightNet):
    def forward(self, pixel_values):
        return [super().forward(pixel_values)]


class GivesNothing(RightNet):
    def forward(self, pixel_values):
        super().forward(pixel_values)


class GivesListInDict(RightNet):
    def forward(self, pixel_values):
        return {"logits": [super().forward(pixel_values)]}


class GivesEmptyDict(RightNet):
    def forward(self, pixel_values):
        return {}


class GivesClassesFirst(RightNet):
    def forward(self, pixel_values):
        return super().forward(pixel_values).movedim(1, 0)


class GivesNumber(RightNet):
    def forward(self, pixel_values):
        return super().forward(pixel_values).sum()


class TakesByPosition(RightNet):
    def forward(self, pixel_values, /):
        return super().forward(pixel_values)


class TakesNothing(RightNet):
    def forward(self):
        return torch.zeros(1)


class TakesOtherKeyword(RightNet):
    def forward(self, pixels):
        return super().forward(pixels)


class NoModule:
    """No ``torch.nn.Module``."""


@register_input_mapper(lambda config: config["nowhere"])
class FactoryRaises(RightNet):
    pass


@register_input_mapper(lambda config: None)
class FactoryGivesNothing(RightNet):
    pass


@register_input_mapper(RasterMapper.from_config)
class WantsBands(RightNet):
    pass


@MULTIMODAL_INPUT_REGISTRY.register_dummy_data(lambda context, seq_len, counts: 5)
class DummyIsNumber(RightNet):
    pass


@MULTIMODAL_INPUT_REGISTRY.register_max_tokens(lambda context: "many")
class TokensAreText(RightNet):
    pass


class Unmapped(nn.Module):
    """Has no mapper, and its folder no processor."""

    def __init__(self, config):
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, pixel_values):
        return self.head(pixel_values)


@register_input_mapper(lambda config: THREE_BANDS)
class WorksInPlace(nn.Module):
    """Writes to the tensor that it is given."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, pixel_values):
        return pixel_values.mul_(2)


class ObeyingMapper:
    """Gives what the data, a word, says."""

    inputs = {"pixel_values": TensorSpec((3, (1, 64), (1, 64))), "dates": TensorSpec((2,), ("int64",))}  # noqa: RUF012

    GOOD = {"pixel_values": np.ones((3, 5, 7), np.float32), "dates": np.array([1, 2])}  # noqa: RUF012

    def __init__(self, config):
        self.given = {
            "good": self.GOOD,
            "good MappedInput": MappedInput(self.GOOD),
            "nothing": None,
            "a list": [self.GOOD["pixel_values"]],
            "an array": self.GOOD["pixel_values"],
            "unknown": {**self.GOOD, "mask": np.ones(3)},
            "too few": {"dates": self.GOOD["dates"]},
            "empty": {},
            "text": {**self.GOOD, "dates": "today"},
            "objects": {**self.GOOD, "dates": [object(), object()]},
            "long doubles": {**self.GOOD, "extra": np.ones(2, np.longdouble)},
            "four bands": {**self.GOOD, "pixel_values": np.ones((4, 5, 7), np.float32)},
            "too wide": {**self.GOOD, "pixel_values": np.ones((3, 5, 65), np.float32)},
            "a batch axis": {**self.GOOD, "pixel_values": np.ones((1, 3, 5, 7), np.float32)},
            "another dtype": {**self.GOOD, "dates": np.array([1.0, 2.0])},
            "no pixels": {**self.GOOD, "extra": np.ones((3, 0))},
        }

    def __call__(self, data, params):
        if data == "raises":
            raise KeyError("no such band")
        if data == "raises unreadable":
            raise UnreadableError
        return self.given[data]


@register_input_mapper(ObeyingMapper)
class TwoTensors(nn.Module):
    """Needs pixels and dates; "extra" is optional."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, pixel_values, dates, extra=None):
        return pixel_values * self.weight + dates.sum(dim=1).reshape(-1, 1, 1, 1)
