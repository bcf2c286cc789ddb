"""A model for `benchmarks.imitated_gpu` that sleeps as long as a network computes on a GPU, and returns fixed classes.

The module is imported in the engine's process. There it also replaces what a GPU does in no time: copies of the input,
``reduce``, and the packing of its results.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, register_output_processor
from vllm_mmout.engine import wire
from vllm_mmout.engine.worker import reduce
from vllm_mmout.models import single_pass
from vllm_mmout.processors import SegmentationProcessor

_SQUARE = 8
"""Height and width in pixels of squares with a single class. The classes therefore compress as well as a map."""


@cache
def _classes(tiles: int, height: int, width: int) -> Tensor:
    """Return random classes 0 and 1, uint8 [tiles, height, width]."""
    squares = torch.rand(tiles, height // _SQUARE, width // _SQUARE) > 0.5
    return torch.kron(squares.to(torch.uint8), torch.ones(1, _SQUARE, _SQUARE, dtype=torch.uint8))


class _OnGPU(SegmentationProcessor):
    """Segmentation whose ``reduce`` returns at once."""

    def reduce(self, output: Any, params: Any) -> Tensor:
        """Return the fixed classes."""
        return _classes(len(output), *output.shape[-2:])


@register_output_processor(_OnGPU)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class ImitatedModel(nn.Module):
    """A model that takes the time of a network on a GPU. The key "pixels_per_s" of config.json says how fast it is."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._pixels_per_s = float(config["pixels_per_s"])
        patch.object(single_pass, "_cloned", dict).start()
        patch.object(reduce, "wire", _Packing()).start()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Sleep, and return an output of the right shape, [n, 1, height, width]."""
        count, _, height, width = pixel_values.shape
        time.sleep(count * height * width / self._pixels_per_s)
        return _classes(count, height, width)[:, None]


class _Packing:
    """The module `wire`, but equal results are packed once."""

    def __init__(self) -> None:
        self._packed: dict[Any, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(wire, name)

    def pack(self, results: Mapping[str, Any]) -> Tensor:
        """Return the packed results."""
        key = tuple((name, tensor.shape) for name, tensor in results.items())
        if key not in self._packed:
            self._packed[key] = wire.pack(results)
        return self._packed[key]
