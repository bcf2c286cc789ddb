"""The mark of a request that wants its output decoded: its OutputParams in ``PoolingParams.extra_kwargs``.

``LLM.encode``, ``/pooling`` and IO Processor plugins carry none and keep getting raw tensors. A mark may come from a
client, so it is input: it is validated here and can name nothing but the options of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.pooling_params import PoolingParams

from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams

KEY = "mmout"
BATCH = "mmout_batch"
"""Key of the batch that a tile is sent with: its number, and how many they are. Only our own `generate` says it."""


def mark(params: OutputParams, batch: list[int] | None = None) -> dict[str, Any]:
    """``extra_kwargs`` for a request with these params; ``batch`` for a tile that is sent with others."""
    return {KEY: params.to_wire()} | ({BATCH: batch} if batch is not None else {})


def marked(pooling_params: PoolingParams, mark: Mapping[str, Any]) -> PoolingParams:
    """Put a mark on the params of one request, beside what they carry; gives them back."""
    pooling_params.extra_kwargs = {**(pooling_params.extra_kwargs or {}), **mark}
    return pooling_params


def without_batch(pooling_params: PoolingParams | None) -> None:
    """Take a batch away that a client has made up: the engine's core would wait for the rest of it."""
    if pooling_params is not None and pooling_params.extra_kwargs:
        pooling_params.extra_kwargs.pop(BATCH, None)


def read(pooling_params: PoolingParams | None) -> OutputParams | None:
    """The params that a request is marked with, None without a mark."""
    extra = pooling_params.extra_kwargs if pooling_params is not None else None
    if not extra or KEY not in extra:
        return None
    wire = extra[KEY]
    if not isinstance(wire, Mapping):
        raise OptionError(f'extra_kwargs["{KEY}"] must be a table of options, got {type(wire).__name__}')
    return OutputParams.from_mapping(wire)
