"""Request, a request to the engine from the caller's options to the decoded result."""

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

    from vllm_mmout.geo import Window
    from vllm_mmout.params import OutputParams

Finish: TypeAlias = Callable[[Any, str | None], Any]
"""Function that adds the input's georeference to a decoded output, and saves the output if a path was given.

The second argument is the name of the output's processor, or None for a whole input with a single processor.
"""
Kind = TypeVar("Kind")


def as_it_is(output: Any, _pick: str | None) -> Any:
    """Return the output unchanged."""
    return output


@dataclass(frozen=True, slots=True)
class PartInput:
    """Input of a part of a request, ready for the engine."""

    index: int
    window: Window | None
    """Window of the tile in the input, or None if the part is not a tile."""
    prompt: Any
    """Rendered input for the engine, or None for a part without valid pixels, which is not sent."""
    valid: NDArray[np.bool_] | None = None
    """Mask of the valid pixels, or None if all pixels are valid."""
    where: str = "part"
    """Name of the part in messages, with its place in the whole input."""
    pooling: PoolingParams | None = None
    """vLLM's params for the part's request, or None for the default of the model's pooling task."""

    def without_prompt(self) -> PartInput:
        """Return a copy without the prompt, so that the input need not stay in memory until the part is decoded."""
        return replace(self, prompt=None)

    def named_in(self, error: BaseException) -> BaseException:
        """Return an error of the same class with the part's name in its message."""
        if not isinstance(error, MMOutError):
            return error
        try:
            named = type(error)(f"{self.where}: {error}")
        except Exception:  # noqa: BLE001 - an author's error class may need other arguments
            error.add_note(f"this was {self.where}")
            return error
        named.__cause__ = error.__cause__
        vars(named).update(vars(error))
        return named


@dataclass(eq=False, slots=True)
class Request:
    """Request to the engine, for an input that fits one forward or for a part of a larger input.

    The caller sets the first group of fields, the reading of the input the second group, and the output processor the
    third group.
    """

    params: OutputParams
    """Options of the request. They are checked against the model once, when the request is accepted."""
    request_id: str = ""
    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None
    """``traceparent`` and ``tracestate`` of the caller."""
    priority: int = 0
    """Priority of the request; lower values run earlier."""
    engine: int | None = None
    """Index of the data-parallel engine, or None to let vLLM choose."""
    place: int = 0
    """Index of the input in a call of ``LLM.generate``."""

    prompt: Any = None
    """Rendered ``mm_input``, or a prompt that vLLM renders. It is set to None after it is sent to the engine."""
    nbytes: int = 0
    """Size of the input's tensors in bytes, or 0 for a part, whose bytes the `TileBudget` counts."""
    mark: Mapping[str, Any] = field(default_factory=dict)
    """Entries of ``PoolingParams.extra_kwargs``, see `wire.mark`."""
    pooling: PoolingParams | None = None
    """vLLM's params for the request, or None for the default of the model's pooling task."""
    finish: Finish = as_it_is
    assumed: tuple[str, ...] = ()
    """Sentences about assumptions made about the input, empty for a part."""
    run: object = None
    """`Run` that a part belongs to, or None for a whole input."""
    part: PartInput | None = None
    """Part of the run that this request is for, or None for a whole input."""

    internal_id: str | None = None
    """vLLM's id of the request, or None before the frontend has it. A request with an id must be delivered or aborted.
    """
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop that waits for the result, or None in ``LLM``."""
    admitted: float = 0.0
    """Time when the frontend accepted the request, in seconds of ``time.monotonic``."""
    steps: int = 0
    """Number of steps that an iterative model takes for the request."""
    reports: deque[MultimodalRequestOutput] = field(default_factory=deque)
    """Reports that the caller has not taken. They are kept here because vLLM's queue may drop all but the last output.
    """
    due: deque[tuple[MultimodalRequestOutput, torch.Tensor]] = field(default_factory=deque)
    """Outputs and their tensors that wait for the decode of an earlier output."""
    total: int = 1
    """Number of tiles for the `Backlog`."""
    done: int = 0
    """Number of finished tiles for the `Backlog`."""
    _shown: int = 0

    def pooling_params(self, task: Any) -> PoolingParams:
        """Return vLLM's params for the request with its mark. ``task`` is the model's pooling task."""
        return wire.marked(self.pooling or PoolingParams(task=task), self.mark)

    def next_report(self) -> Progress | None:
        """Return the progress for the next report, or None if no report is due before the result."""
        shown_after = self.mark.get(wire.REPORTS, ())
        if self._shown == len(shown_after):
            return None
        self._shown += 1
        return Progress(shown_after[self._shown - 1], self.steps, self._shown - 1)

    def release(self) -> None:
        """Drop the input, because tasks that vLLM started while adding the request keep this object alive."""
        self.prompt, self.finish = None, as_it_is


TICKET: ContextVar[object] = ContextVar("mmout_ticket", default=None)
"""Request that the current task is adding to the engine, or None if vLLM's own code adds a request."""


def ticket(kind: type[Kind]) -> Kind | None:
    """Return the request that the current task is adding to the engine, or None if it is not of this class."""
    request = TICKET.get()
    return request if isinstance(request, kind) else None


@contextmanager
def carrying(request: object) -> Iterator[None]:
    """Set `TICKET` to a request while it is added to the engine, so that the output processor finds it."""
    token = TICKET.set(request)
    try:
        yield
    finally:
        TICKET.reset(token)
