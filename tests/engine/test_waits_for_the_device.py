"""What an engine does for a GPU before its step, and from forward to the copy to the host, without waiting for it.

torch's device "meta" stands for the GPU. It has no values, so that each look at a value (``item``, ``bool``,
``nonzero``) raises.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from vllm_mmout import OutputParams
from vllm_mmout.engine import wire
from vllm_mmout.engine.worker import pinning
from vllm_mmout.engine.worker.reduce import ReducingPooler
from vllm_mmout.models.author import run
from vllm_mmout.models.inputs.engine_input import FIELD, as_block_input
from vllm_mmout.models.single_pass import PlainPooler, SinglePassModel
from vllm_mmout.processors import RegressionProcessor, SegmentationProcessor

pytestmark = pytest.mark.engine

DEVICE = torch.device("meta")
TILES = 4


class WaitingCopies(TorchDispatchMode):
    """Lists the copies from the host that would wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            waits = not (kwargs or {}).get("non_blocking") and args[2:3] != (True,)
            if waits and source.device.type == "cpu" and result.device == DEVICE:
                self.found.append(func)
        return result


def adapter_of(network):
    """The model as the engine runs it, without an engine."""
    adapter = object.__new__(SinglePassModel)
    nn.Module.__init__(adapter)
    adapter.model, adapter._forward, adapter._device = network, partial(run, network), DEVICE
    adapter._keywords, adapter._dtype = ("pixel_values",), None
    return adapter


class Network(nn.Conv2d):
    def forward(self, pixel_values):
        return super().forward(pixel_values.float())


@pytest.mark.parametrize(
    ("processor", "bands"),
    [
        (SegmentationProcessor(), 2),
        (SegmentationProcessor(), 20),
        (RegressionProcessor(scale=[0.1, 2.0], offset=1.0, clip=[0, None], dtype="uint8"), 2),
    ],
    ids=["few classes", "many classes", "regression"],
)
def test_a_block_is_packed_without_a_wait(processor, bands):
    """Forward, reduce and packing of a block of tiles look at no value, and copy nothing from pageable memory."""
    adapter = adapter_of(Network(6, bands, 3, padding=1, device=DEVICE))
    pooler = ReducingPooler(PlainPooler(), {processor.name: processor})
    params = wire.marked(SimpleNamespace(extra_kwargs=None), wire.mark(OutputParams()))
    pixels = torch.empty((TILES, 6, 32, 32), dtype=torch.int16, device=DEVICE)
    marker = torch.empty((0, TILES, 0), dtype=torch.bool, device=DEVICE)
    with torch.inference_mode(), WaitingCopies() as copies:
        hidden = adapter(None, torch.zeros(1), tensors=[[pixels, marker]])
        (buffer,) = pooler(hidden, SimpleNamespace(pooling_params=[params]))
    assert buffer.device == DEVICE, wire.unpack(buffer)
    assert buffer.numel() > TILES * 32 * 32
    assert copies.found == []


def test_pixels_are_pinned_as_they_arrive(monkeypatch):
    """Large tensors of a request are pinned before vLLM takes it in; without room for more, it is taken as it came."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    monkeypatch.setattr(pinning, "PIN_MEMORY", True)
    (item,) = as_block_input({"pixel_values": np.zeros((2, 6, 64, 64), np.float32)}, ("pixel_values",), 2)["mm_kwargs"][
        "image"
    ]
    core = SimpleNamespace(
        vllm_config=SimpleNamespace(device_config=SimpleNamespace(device_type="cuda")),
        model_executor=object.__new__(UniProcExecutor),
        preprocess_add_request=lambda request: request.mm_features[0].data[FIELD].data,
    )
    pinning.pin_on_arrival(core)
    request = SimpleNamespace(mm_features=[SimpleNamespace(data=item)])
    pixels, marker = core.preprocess_add_request(request)
    assert (pixels == 1).all()
    assert marker.shape == (0, 2, 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", Mock(side_effect=RuntimeError))
    assert core.preprocess_add_request(request)[0] is pixels
