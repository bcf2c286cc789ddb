"""Wrap the model's own pooler, to run the output processors' ``reduce`` in the worker.

An exception that leaves the pooler would crash the engine for all clients. A failure therefore becomes the result of
the request that caused it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import torch
from torch import nn
from vllm.model_executor.layers.pooler import Pooler

from vllm_mmout.engine import wire
from vllm_mmout.engine.worker.reports import Reports
from vllm_mmout.errors import MMOutError, ReduceError, message_of, raise_interrupt
from vllm_mmout.log import logger
from vllm_mmout.models.single_pass import BlockOutput, Outcome, PerRequest, RequestOutcome, plain
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import checked_group, each, named

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from vllm.model_executor.layers.pooler import PoolingParamsUpdate
    from vllm.pooling_params import PoolingParams
    from vllm.tasks import PoolingTask
    from vllm.v1.pool.metadata import PoolingMetadata

    from vllm_mmout.processors.base import OutputProcessor, Raw

Pooled: TypeAlias = "torch.Tensor | Sequence[RequestOutcome | None]"
"""Raw outputs of the requests of a step, as a tensor or a list. Unfinished requests have the entry None."""


class Stepped(list["Outcome | None"]):
    """List with the raw output of each request of a step. Its attribute ``early`` has previews of unfinished requests.

    An unfinished request has the entry None in the list.
    """

    def __init__(self, outcomes: Sequence[Outcome | None], early: Mapping[int, Outcome]) -> None:
        super().__init__(outcomes)
        self.early = early
        """Outputs of requests that are not finished, such as previews, by the index of the request in the batch."""


class ReducingPooler(Pooler):
    """Pooler that runs ``reduce`` of the requested output processors, and packs the results into bytes.

    Requests whose params do not hold `OutputParams` get the output of the model's own pooler.
    """

    def __init__(self, inner: Pooler, processors: Mapping[str, OutputProcessor]) -> None:
        super().__init__()
        self.inner = inner
        self.processors = processors
        self.reports = Reports()

    def get_supported_tasks(self) -> AbstractSet[PoolingTask]:
        """Return the tasks that the model's own pooler supports."""
        return self.inner.get_supported_tasks()

    def get_pooling_updates(self, task: PoolingTask) -> PoolingParamsUpdate:
        """Return the changes that the model's own pooler makes to the pooling params for a task."""
        return self.inner.get_pooling_updates(task)

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> torch.Tensor | list[torch.Tensor | None]:
        """Run ``reduce`` for requests that have `OutputParams`. Run the model's own pooler for all other requests.

        Args:
            hidden_states: output of the model's ``forward``, with the requests on axis 0.
            pooling_metadata: vLLM's record of the step's requests, in the same order.

        Returns:
            The inner pooler's output if no request has `OutputParams`. Otherwise a uint8 buffer for each request that
            has them, and the inner pooler's tensor for the others. Buffers of equal shape are stacked, so that the step
            needs only one copy to the host.

        """
        requests = pooling_metadata.pooling_params
        if not any(map(_is_marked, requests)):
            raw: torch.Tensor | list[Outcome | None] = self.inner(hidden_states, pooling_metadata)
            return raw if isinstance(raw, torch.Tensor) else [None if part is None else plain(part) for part in raw]
        if isinstance(hidden_states, PerRequest):
            return self._reduce_step([*hidden_states.parts], requests)
        try:
            pooled = self.inner(hidden_states, pooling_metadata)
        except BaseException as error:  # noqa: BLE001 - an exception that leaves this method ends the engine
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
                options = wire.read(params)
            except MMOutError as error:
                buffers[row] = wire.pack_failure(_failure("request", error))
                continue
            if options is None:
                buffers[row] = plain(raw)
            elif isinstance(raw, MMOutError):
                buffers[row] = wire.pack_failure(_failure("", raw))
            elif isinstance(raw, BlockOutput):
                buffers[row] = self._reduce_block(raw, options)
            else:
                groups.setdefault((options, _shapes(raw)), []).append(row)
        for (options, _), rows in groups.items():
            packed = self._reduce_group(_stack(pooled, rows), len(rows), options)
            if isinstance(packed, torch.Tensor) and len(rows) == len(requests):
                return packed
            for row, buffer in zip(rows, packed, strict=True):
                buffers[row] = buffer
        return buffers

    def _reduce_group(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | list[torch.Tensor]:
        """Run ``reduce`` on requests of equal shape and options. If that fails, run it on each request alone.

        Only the faulty requests then fail.
        """
        outcome = self._reduce(raw, count, params)
        if not isinstance(outcome, wire.Failure):
            return outcome
        if count == 1:
            return [wire.pack_failure(outcome)]
        single = (each(itemgetter(slice(row, row + 1)), raw) for row in range(count))
        return [self._reduce_group(request, 1, params)[0] for request in single]

    def _reduce_block(self, block: BlockOutput, params: OutputParams) -> torch.Tensor:
        """Run ``reduce`` on several tiles at once, and pack the results into one buffer with the tiles on axis 0.

        If that fails, reduce each tile alone. The block fails with the error of the first tile that fails alone.
        """
        picks = self._picks(block.output, block.count, params)
        if isinstance(picks, wire.Failure):
            alone: list[dict[str, Raw]] = []
            for tile in range(block.count):
                one = each(itemgetter(slice(tile, tile + 1)), block.output)
                picks = self._picks(one, 1, params) if block.count > 1 else picks
                if isinstance(picks, wire.Failure):
                    return wire.pack_failure(msgspec.structs.replace(picks, tile=tile))
                alone.append(picks)
            picks = {name: each(_joined, *(tile[name] for tile in alone)) for name in alone[0]}
        packed = _packed({name: each(itemgetter(None), raw) for name, raw in picks.items()})
        return wire.pack_failure(packed) if isinstance(packed, wire.Failure) else packed[0]

    def _reduce(self, raw: Raw, count: int, params: OutputParams) -> torch.Tensor | wire.Failure:
        picks = self._picks(raw, count, params)
        return picks if isinstance(picks, wire.Failure) else _packed(picks)

    def _picks(self, raw: Raw, count: int, params: OutputParams) -> dict[str, Raw] | wire.Failure:
        """Run ``reduce`` of each requested processor on the raw model output. Return a dict: processor name -> result.

        ``raw`` is the output for ``count`` requests or tiles. Return a Failure if a processor raises.
        """
        picks: dict[str, Raw] = {}
        name = "request"
        try:
            for name in params.picks or tuple(self.processors)[:1]:
                picks[name] = checked_group(self.processors[name].reduce(raw, params), count, "reduce()", ReduceError)
        except BaseException as error:  # noqa: BLE001 - whatever the author's code raises fails only these requests
            raise_interrupt(error)
            return _failure(name, error)
        return picks


def _packed(picks: dict[str, Raw]) -> torch.Tensor | wire.Failure:
    try:
        return wire.pack(picks)
    except BaseException as error:  # noqa: BLE001 - the tensors are the author's
        raise_interrupt(error)
        return _failure(next(reversed(picks)), error)


def _joined(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors)


def wrap_pooler(model: nn.Module, processors: Mapping[str, OutputProcessor]) -> None:
    """Wrap the pooler of a loaded pooling model in a `ReducingPooler`, unless it is wrapped already."""
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
    tile = error.tile if isinstance(error, MMOutError) else None
    return wire.Failure(processor, type(error).__name__, message_of(error), tile)


def _shapes(raw: Raw) -> tuple[object, ...]:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(named(raw).items()))


def _stack(pooled: Pooled, rows: list[int]) -> Raw:
    """Stack the raw outputs with the indices ``rows`` on axis 0.

    If ``rows`` are all rows of a tensor ``pooled``, return the tensor without a copy.
    """
    if isinstance(pooled, torch.Tensor):
        return pooled if len(rows) == pooled.shape[0] else pooled[rows]
    chosen: list[Any] = [pooled[row] for row in rows]
    return each(lambda *tensors: torch.stack(tensors), *chosen)
