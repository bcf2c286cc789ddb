"""The pooler that runs ``reduce`` in the worker, around the model's own pooler.

Nothing may raise out of it: one exception there ends the engine for everybody, for good. A failure becomes the result
of the one request that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from vllm.model_executor.layers.pooler import Pooler

from vllm_mmout.engine import wire
from vllm_mmout.engine.worker.reports import Reports
from vllm_mmout.errors import MMOutError, ReduceError, message_of, raise_interrupt
from vllm_mmout.log import logger
from vllm_mmout.models.single_pass import Outcome, PerRequest, plain
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import checked_group, each, named

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from vllm.model_executor.layers.pooler import PoolingParamsUpdate
    from vllm.pooling_params import PoolingParams
    from vllm.tasks import PoolingTask
    from vllm.v1.pool.metadata import PoolingMetadata

    from vllm_mmout.processors.base import OutputProcessor, Raw

Pooled: TypeAlias = "torch.Tensor | list[Outcome | None]"
"""The requests' raw outputs: stacked, or one each; None for a request that is not finished in this step."""


class Stepped(list["Outcome | None"]):
    """Raw outputs of a step, one a request, and what others give before they are finished."""

    def __init__(self, outcomes: Sequence[Outcome | None], early: Mapping[int, Outcome]) -> None:
        super().__init__(outcomes)
        self.early = early
        """By row."""


class ReducingPooler(Pooler):
    """Runs the picked processors' ``reduce`` on marked requests and packs the results; hands on all others."""

    def __init__(self, inner: Pooler, processors: Mapping[str, OutputProcessor]) -> None:
        super().__init__()
        self.inner = inner
        self.processors = processors
        self.reports = Reports()

    def get_supported_tasks(self) -> AbstractSet[PoolingTask]:
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
            raw: torch.Tensor | list[Outcome | None] = self.inner(hidden_states, pooling_metadata)
            return raw if isinstance(raw, torch.Tensor) else [None if one is None else plain(one) for one in raw]
        if isinstance(hidden_states, PerRequest):
            return self._reduce_step([*hidden_states.parts], requests)
        try:
            pooled = self.inner(hidden_states, pooling_metadata)
        except BaseException as error:  # noqa: BLE001 - what leaves this method ends the engine
            raise_interrupt(error)
            logger.exception("the model's pooler failed on a step of %d requests", len(requests))
            failure = wire.pack_failure(_failure("pooler", error))
            return [failure if _is_marked(params) else torch.empty(0) for params in requests]
        for row, early in (pooled.early if isinstance(pooled, Stepped) else {}).items():
            (buffer,) = self._reduce_step([early], [requests[row]])
            if buffer is not None:
                self.reports.put(row, buffer)
        return self._reduce_step(pooled, requests)

    def _reduce_step(
        self, pooled: Pooled, requests: Sequence[PoolingParams]
    ) -> torch.Tensor | list[torch.Tensor | None]:
        buffers: list[torch.Tensor | None] = [None] * len(requests)
        groups: dict[tuple[OutputParams, object], list[int]] = {}
        for row, (params, raw) in enumerate(zip(requests, pooled, strict=True)):
            if raw is None:
                continue
            try:
                wanted = wire.read(params)
            except MMOutError as error:
                buffers[row] = wire.pack_failure(_failure("request", error))
                continue
            if wanted is None:
                buffers[row] = plain(raw)
            elif isinstance(raw, MMOutError):
                buffers[row] = wire.pack_failure(_failure("", raw))
            else:
                groups.setdefault((wanted, _shapes(raw)), []).append(row)
        for (wanted, _), rows in groups.items():
            packed = self._reduce_group(_stack(pooled, rows), len(rows), wanted)
            if isinstance(packed, torch.Tensor) and len(rows) == len(requests):
                return packed
            for row, buffer in zip(rows, packed, strict=True):
                buffers[row] = buffer
        return buffers

    def _reduce_group(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | list[torch.Tensor]:
        """Reduce requests that are alike together; where that fails, each alone, so that one takes no other with it."""
        outcome = self._reduce(raw, count, params)
        if not isinstance(outcome, wire.Failure):
            return outcome
        if count == 1:
            return [wire.pack_failure(outcome)]
        single = (each(itemgetter(slice(row, row + 1)), raw) for row in range(count))
        return [self._reduce_group(one, 1, params)[0] for one in single]

    def _reduce(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | wire.Failure:
        picks: dict[str, Raw] = {}
        name = "request"
        try:
            for name in params.picks or tuple(self.processors)[:1]:
                picks[name] = checked_group(self.processors[name].reduce(raw, params), count, "reduce()", ReduceError)
            return wire.pack(picks)
        except BaseException as error:  # noqa: BLE001 - an author's code: all it raises is that request's
            raise_interrupt(error)
            return _failure(name, error)


def wrap_pooler(model: nn.Module, processors: Mapping[str, OutputProcessor]) -> None:
    """Put the reducing pooler around a loaded pooling model's own."""
    inner = getattr(model, "pooler", None)
    if inner is None:
        raise ReduceError(
            f"{type(model).__name__} has an output processor but no pooler; a single-pass model needs one"
        )
    if not isinstance(inner, ReducingPooler):
        model.pooler = ReducingPooler(inner, processors)


def _is_marked(params: PoolingParams) -> bool:
    return wire.KEY in (params.extra_kwargs or {})


def _failure(processor: str, error: BaseException) -> wire.Failure:
    return wire.Failure(processor, type(error).__name__, message_of(error))


def _shapes(raw: Raw) -> tuple[object, ...]:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(named(raw).items()))


def _stack(pooled: Pooled, rows: list[int]) -> Raw:
    """The rows with the requests on axis 0; without a copy where they are all of a stacked tensor."""
    if isinstance(pooled, torch.Tensor):
        return pooled if len(rows) == pooled.shape[0] else pooled[rows]
    chosen: list[Any] = [pooled[row] for row in rows]
    return each(lambda *tensors: torch.stack(tensors), *chosen)
