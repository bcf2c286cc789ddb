"""The pooler that runs ``reduce`` in the worker, around the model's own pooler.

Nothing may raise out of it: one exception there ends the engine for everybody, for good. A failure becomes the result of
the one request that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.pooler import Pooler

from vllm_mmout.engine import codec, marker
from vllm_mmout.errors import MMOutError, ReduceError
from vllm_mmout.models.per_request import PerRequest
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from collections.abc import Set

    from vllm.model_executor.layers.pooler import PoolingParamsUpdate
    from vllm.pooling_params import PoolingParams
    from vllm.tasks import PoolingTask
    from vllm.v1.pool.metadata import PoolingMetadata

    from vllm_mmout.processors.base import OutputProcessor, Raw

logger = init_logger(__name__)

Outcome: TypeAlias = "dict[str, Raw] | codec.Failure"
"""What one request gets: for each pick what ``reduce`` returned, with an axis 0 of one; or why there is nothing."""


class ReducingPooler(Pooler):
    """Runs the picked processors' ``reduce`` on marked requests and packs the results; hands on all others."""

    def __init__(self, inner: Pooler, processors: Mapping[str, OutputProcessor]) -> None:
        super().__init__()
        self.inner = inner
        self.processors = processors

    def get_supported_tasks(self) -> Set[PoolingTask]:
        """As the model's own pooler."""
        return self.inner.get_supported_tasks()

    def get_pooling_updates(self, task: PoolingTask) -> PoolingParamsUpdate:
        """As the model's own pooler."""
        return self.inner.get_pooling_updates(task)

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> torch.Tensor | list[torch.Tensor | None]:
        """Pool a step.

        Args:
            hidden_states: what the model's forward returned, the requests on axis 0.
            pooling_metadata: vLLM's record of the step's requests, in the same order.

        Returns:
            What the inner pooler returned if no request is marked; otherwise one uint8 buffer a marked request and the
            inner pooler's tensor for the others, stacked where they are alike (one copy to the host a step).

        """
        requests = pooling_metadata.pooling_params
        if not any(map(_is_marked, requests)):
            pooled = self.inner(hidden_states, pooling_metadata)
            return [_plain(part) for part in pooled.parts] if isinstance(pooled, PerRequest) else pooled
        try:
            raw = self.inner(hidden_states, pooling_metadata)
        except Exception as error:  # noqa: BLE001 - the last frame before the engine's own, which would die of it
            logger.exception("the model's pooler failed on a step of %d requests", len(requests))
            failure = codec.pack_failure(_failure("pooler", error))
            return [failure if _is_marked(params) else torch.empty(0) for params in requests]
        return self._reduce_step(raw.parts if isinstance(raw, PerRequest) else raw, requests)

    def _reduce_step(
        self, raw: torch.Tensor | list[Raw], requests: Sequence[PoolingParams]
    ) -> torch.Tensor | list[torch.Tensor | None]:
        buffers: list[torch.Tensor | None] = [None] * len(requests)
        groups: dict[tuple[object, ...], list[int]] = {}
        for row, params in enumerate(requests):
            if raw[row] is None:  # not finished in this step
                continue
            if not _is_marked(params):
                buffers[row] = _plain(raw[row])
                continue
            try:
                wanted = marker.read(params)
                key = (wanted, _shapes(raw[row]))
            except MMOutError as error:
                buffers[row] = codec.pack_failure(_failure("request", error))
                continue
            groups.setdefault(key, []).append(row)
        for (wanted, _), rows in groups.items():
            packed = self._reduce_group(_stack(raw, rows), len(rows), wanted)
            if isinstance(packed, torch.Tensor) and len(rows) == len(requests):
                return packed
            for row, buffer in zip(rows, packed, strict=True):
                buffers[row] = buffer
        return buffers

    def _reduce_group(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | list[torch.Tensor]:
        """Reduce requests that are alike together; where that fails, each alone, so that one takes no other with it."""
        outcome = self._reduce(raw, count, params)
        if not isinstance(outcome, codec.Failure):
            return outcome
        if count == 1:
            return [codec.pack_failure(outcome)]
        return [self._reduce_group(_rows(raw, row), 1, params)[0] for row in range(count)]

    def _reduce(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | codec.Failure:
        picks: dict[str, Raw] = {}
        name = "request"
        try:
            for name in params.picks or tuple(self.processors)[:1]:
                if name not in self.processors:
                    raise ReduceError(f"the worker has no output processor {name!r} (known: {', '.join(self.processors)})")
                picks[name] = _checked(self.processors[name].reduce(raw, params), count)
            return codec.pack(picks)
        except Exception as error:  # noqa: BLE001 - an author's code: whatever it raises is that request's error
            return _failure(name, error)


def wrap_pooler(model: nn.Module, processors: Mapping[str, OutputProcessor]) -> None:
    """Put the reducing pooler around a loaded pooling model's own.

    Raises:
        ReduceError: the model has no pooler.

    """
    inner = getattr(model, "pooler", None)
    if inner is None:
        raise ReduceError(f"{type(model).__name__} has an output processor but no pooler; a single-pass model needs one")
    if not isinstance(inner, ReducingPooler):
        model.pooler = ReducingPooler(inner, processors)


def _is_marked(params: PoolingParams) -> bool:
    return bool(params.extra_kwargs) and marker.KEY in params.extra_kwargs


def _failure(processor: str, error: Exception) -> codec.Failure:
    return codec.Failure(processor, type(error).__name__, str(error))


def _shapes(raw: Raw) -> tuple[object, ...]:
    items = [("", raw)] if isinstance(raw, torch.Tensor) else sorted(raw.items())
    return tuple((key, tensor.shape, tensor.dtype) for key, tensor in items)


def _stack(raw: torch.Tensor | list[Raw], rows: list[int]) -> Raw:
    """The rows with the requests on axis 0; without a copy where they are all of a stacked tensor."""
    if isinstance(raw, torch.Tensor):
        return raw if len(rows) == raw.shape[0] else raw[rows]
    first = raw[rows[0]]
    if isinstance(first, torch.Tensor):
        return torch.stack([raw[row] for row in rows])
    return {key: torch.stack([raw[row][key] for row in rows]) for key in first}


def _rows(raw: Raw, row: int) -> Raw:
    if isinstance(raw, torch.Tensor):
        return raw[row : row + 1]
    return {key: tensor[row : row + 1] for key, tensor in raw.items()}


def _plain(raw: Raw) -> torch.Tensor:
    """What an unmarked request gets: the tensor itself; vLLM can carry no dict, so of several the first."""
    return raw if isinstance(raw, torch.Tensor) else next(iter(raw.values()))


def _checked(reduced: object, count: int) -> Raw:
    """Check the type and axis 0 of what ``reduce`` returned (dtype and size are checked when it is packed)."""
    tensors: Iterable[object] = reduced.values() if isinstance(reduced, dict) else [reduced]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ReduceError(f"reduce() must return a tensor or a dict of tensors, got {type(tensor).__name__}")
        if tensor.dim() == 0 or tensor.shape[0] != count:
            raise ReduceError(
                f"reduce() must keep the requests on axis 0: got shape {list(tensor.shape)} for {count} requests"
            )
        if tensor.layout != torch.strided:
            raise ReduceError(f"reduce() must return strided tensors, got layout {tensor.layout}; use to_dense()")
    if isinstance(reduced, dict) and (not reduced or not all(isinstance(key, str) for key in reduced)):
        raise ReduceError("reduce() must return a dict of at least one tensor by name (str)")
    return reduced  # type: ignore[return-value] - narrowed above, item by item
