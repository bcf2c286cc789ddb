"""Request: one request to the engine, from what its caller asks to its decoded result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vllm.pooling_params import PoolingParams

from vllm_mmout.engine import wire
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.geo import Window
    from vllm_mmout.params import OutputParams

Finish: TypeAlias = Callable[[Any, str | None], Any]
"""Takes a decoded output and the name of its processor; returns it with its place in the input, and saved if asked.

The name is None for a whole input with a single processor.
"""
Kind = TypeVar("Kind")


def as_it_is(output: Any, _pick: str | None) -> Any:
    """Return the output unchanged."""
    return output


@dataclass(frozen=True, slots=True)
class PartInput:
    """One part of a request, ready for the engine."""

    index: int
    window: Window | None
    prompt: Any
    """Rendered input of the engine, or None for a part without any observation, which is not sent."""
    valid: NDArray[np.bool_] | None = None
    where: str = "part"
    """Name of the part in messages, with its place in the whole input."""
    pooling: PoolingParams | None = None
    """vLLM's params of the part's request, or None for the model's default."""

    def without_prompt(self) -> PartInput:
        """Return a copy that does not keep the input in memory until the part is decoded."""
        return replace(self, prompt=None)

    def named_in(self, error: BaseException) -> BaseException:
        """Return the error with the part's name in its message."""
        if not isinstance(error, MMOutError):
            return error
        try:
            named = type(error)(f"{self.where}: {error}")
        except Exception:  # noqa: BLE001 - an author's error class may take other arguments
            error.add_note(f"this was {self.where}")
            return error
        named.__cause__ = error.__cause__
        vars(named).update(vars(error))
        return named


@dataclass(eq=False, slots=True)
class Request:
    """One request to the engine: an input that fits one forward, or one part of a larger one.

    The caller fills the first group of fields, reading the input the second one, and the output processor the third.
    """

    params: OutputParams
    """Options, checked against the model once, when the request enters."""
    request_id: str = ""
    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None
    """The caller's ``traceparent`` and ``tracestate``."""
    priority: int = 0
    """Lower values run earlier."""
    engine: int | None = None
    """Index of the data-parallel engine, or None to let vLLM choose."""
    place: int = 0
    """Index of the input in a call of ``LLM.generate``."""
    traced: Traced | None = None

    prompt: Any = None
    """A rendered ``mm_input``, or a prompt that vLLM renders. It is None once the engine has it."""
    nbytes: int = 0
    """Bytes of input that travel; 0 for a part, whose bytes the `TileBudget` counts."""
    mark: Mapping[str, Any] = field(default_factory=dict)
    """Entries of ``PoolingParams.extra_kwargs``, see `wire.mark`."""
    pooling: PoolingParams | None = None
    """vLLM's params of the request, or None for the default of the model's pooling task."""
    finish: Finish = as_it_is
    assumed: tuple[str, ...] = ()
    """Sentences about assumptions made about the input; empty for a part."""
    run: object = None
    """The `Run` that a part belongs to."""
    part: PartInput | None = None

    internal_id: str | None = None
    """vLLM's id, from the moment when the frontend has the request; it must be aborted if it is not delivered."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that waits for the result, or None in ``LLM``."""
    admitted: float = 0.0
    """Time when the frontend got the request, in seconds of ``time.monotonic``."""
    steps: int = 0
    """Number of steps of an iterative model."""
    reports: deque[MultimodalRequestOutput] = field(default_factory=deque)
    """Outputs before the result that the caller has not taken; a later one may replace them in vLLM's queue."""
    due: deque[tuple[MultimodalRequestOutput, torch.Tensor]] = field(default_factory=deque)
    """Outputs that wait for the decode of an earlier output."""
    total: int = 1
    """Number of tiles for the `Backlog`."""
    done: int = 0
    """Number of finished tiles for the `Backlog`."""
    _shown: int = 0

    def pooling_params(self, task: Any) -> PoolingParams:
        """Return vLLM's params of the request, with its mark; ``task`` is the model's pooling task."""
        mark = self.mark if self.traced is None else {**self.mark, wire.TRACED: self.traced.named}
        return wire.marked(self.pooling or PoolingParams(task=task), mark)

    def next_report(self) -> Progress | None:
        """Return the progress that belongs to the next output before the result, or None if no more is due."""
        shown_after = self.mark.get(wire.REPORTS, ())
        if self._shown == len(shown_after):
            return None
        self._shown += 1
        return Progress(shown_after[self._shown - 1], self.steps, self._shown - 1)

    def release(self) -> None:
        """Drop the input, since tasks that vLLM started while it was added keep this object alive."""
        self.prompt, self.finish = None, as_it_is


TICKET: ContextVar[object] = ContextVar("mmout_ticket", default=None)
"""The request that this task is adding to the engine, or None if vLLM's own code is adding one."""


def ticket(kind: type[Kind]) -> Kind | None:
    """Return the request that is being added, or None if it is not of this kind."""
    request = TICKET.get()
    return request if isinstance(request, kind) else None


@contextmanager
def carrying(request: object) -> Iterator[None]:
    """Have the output processor find a request while it is added to the engine."""
    token = TICKET.set(request)
    try:
        yield
    finally:
        TICKET.reset(token)
