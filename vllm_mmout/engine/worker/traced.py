"""Measure how long a worker takes for each stage of a step: copy of inputs, ``forward``, ``reduce``, copy of results.

This is done only in a traced engine. On a GPU, tracing synchronizes with the device after each stage. An untraced step
does not.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from vllm_mmout.engine import wire
from vllm_mmout.engine.trace import Trace, Traced

if TYPE_CHECKING:
    from torch import nn
    from vllm.pooling_params import PoolingParams

_FORM = struct.Struct("<5d8s")
_MAGIC = b"MMOTRACE"


@dataclass(frozen=True, slots=True)
class Times:
    """Times when a step began and when its stages ended, in seconds of ``time.monotonic()``.

    The worker appends the times to each result of the step.
    """

    began: float
    loaded: float
    forwarded: float
    reduced: float
    copied: float

    def append_to(self, buffer: torch.Tensor) -> torch.Tensor:
        """Append the times of a step to ``buffer``, a request's result. Return result and times as a new tensor.

        Both tensors are uint8 [bytes] in CPU memory.
        """
        packed = bytearray(_FORM.pack(*astuple(self), _MAGIC))
        return torch.cat([buffer, torch.frombuffer(packed, dtype=torch.uint8)])

    @staticmethod
    def read(buffer: torch.Tensor) -> Times | None:
        """Return the times at the end of ``buffer``, a request's result. Return None if ``buffer`` holds no times."""
        if buffer.dtype != torch.uint8 or buffer.numel() < _FORM.size:
            return None
        *times, magic = _FORM.unpack(buffer[-_FORM.size :].numpy().tobytes())
        return Times(*times) if magic == _MAGIC else None


class StepTrace:
    """Recorder of the end times of the stages of an engine step, such as the forward pass.

    It runs in the worker that sends the results.
    """

    def __init__(self, trace: Trace, device: torch.device) -> None:
        self._trace = trace
        self._device = device
        self._entered = self._began = self._loaded = self._forwarded = self._reduced = 0.0
        self._requests: Sequence[PoolingParams] = ()

    def watch(self, worker: Any, model: nn.Module) -> None:
        """Start to record the times of a worker's steps."""
        model.register_forward_pre_hook(self._forward_begins)
        pooler: Any = model.pooler
        pooler.register_forward_pre_hook(self._reduce_begins)
        pooler.register_forward_hook(self._reduce_ends, with_kwargs=True)
        for name in ("execute_model", "sample_tokens"):
            setattr(worker, name, partial(self._step, getattr(worker, name)))

    def _forward_begins(self, *_: object) -> None:
        self._wait()
        self._began, self._loaded = self._entered, time.monotonic()

    def _reduce_begins(self, *_: object) -> None:
        self._wait()
        self._forwarded = time.monotonic()

    def _reduce_ends(self, _pooler: object, args: Sequence[Any], kwargs: dict[str, Any], _output: object) -> None:
        self._wait()
        self._reduced = time.monotonic()
        metadata = kwargs["pooling_metadata"] if "pooling_metadata" in kwargs else args[1]
        self._requests = metadata.pooling_params

    def _wait(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()

    def _step(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step, or a part of a step, by calling ``work``. Record the times of the step if it produced output.

        ``work`` is the worker's ``execute_model`` or ``sample_tokens``. The output may still be on its way to the host.
        The times are then recorded when the copy is complete.
        """
        self._requests, self._entered = (), time.monotonic()
        output = work(*args, **kwargs)
        requests, self._requests = self._requests, ()
        if not requests or output is None:
            return output
        copied = partial(self._copied, requests, (self._began, self._loaded, self._forwarded, self._reduced))
        if not hasattr(output, "get_output"):
            return copied(output)
        get_output = output.get_output
        output.get_output = lambda: copied(get_output())
        return output

    def _copied(self, requests: Sequence[PoolingParams], times: tuple[float, float, float, float], output: Any) -> Any:
        step = Times(*times, time.monotonic())
        for row, (params, buffer) in enumerate(zip(requests, output.pooler_output, strict=True)):
            names = (params.extra_kwargs or {}).get(wire.TRACED)
            if names is None or buffer is None:
                continue
            traced = Traced(self._trace, *names)
            traced.stage("load", step.began, step.loaded)
            traced.stage("forward", step.loaded, step.forwarded, requests=len(requests))
            traced.stage("reduce", step.forwarded, step.reduced)
            traced.stage("copy", step.reduced, step.copied)
            output.pooler_output[row] = step.append_to(buffer)
        return output
