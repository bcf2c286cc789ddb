"""Copy the tensors of a request to pinned memory as soon as the engine core receives the request.

The core's thread that receives requests makes the copies. vLLM's worker would make them when a step begins, and the GPU
would be idle meanwhile. The worker takes pinned tensors as they are. A worker in another process would get copies that
are not pinned, so tensors are pinned only if the worker is in the core's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.executor.uniproc_executor import UniProcExecutor

_LEAST_BYTES = 1 << 16
"""Smallest size in bytes of a tensor that is copied to pinned memory. Smaller tensors would save no time."""


def pin_on_arrival(core: Any) -> None:
    """Make an engine core pin the tensors of requests as they arrive, if its worker copies them to a GPU."""
    on_gpu = PIN_MEMORY and core.vllm_config.device_config.device_type != "cpu"
    if not on_gpu or not isinstance(core.model_executor, UniProcExecutor):
        return
    preprocess = core.preprocess_add_request

    def pinned(request: Any) -> Any:
        pin(request.mm_features or ())
        return preprocess(request)

    core.preprocess_add_request = pinned


def pin(features: Sequence[Any]) -> None:
    """Replace the large tensors in the inputs of a request by pinned copies.

    If the machine gives no more pinned memory, the rest is left for vLLM to copy.
    """
    with suppress(RuntimeError):
        for feature in features:
            for element in (feature.data or {}).values():
                if isinstance(element.data, list):
                    element.data = [
                        value.pin_memory() if _is_large(value) and not value.is_pinned() else value
                        for value in element.data
                    ]


def _is_large(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cpu and value.nbytes >= _LEAST_BYTES
