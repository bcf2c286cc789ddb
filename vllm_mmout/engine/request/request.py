"""Define `Request`, which holds the options, input and progress of a request to the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vllm.pooling_params import PoolingParams

from vllm_mmout.engine import wire
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.errors import MMOutError, with_name

if TYPE_CHECKING:
    import torch
    from vllm.lora.request import LoRARequest

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.part import Part

Finish: TypeAlias = Callable[[Any, str | None], Any]
"""Function that georeferences a decoded output, and saves the output if the request has a path.

The arguments are the output and its processor's name. If the request has a single output
and is not split into parts, the name is None.
"""
Kind = TypeVar("Kind")


def as_it_is(output: Any, _processor_name: str | None) -> Any:
    """Return the output unchanged."""
    return output


@dataclass(frozen=True, slots=True)
class PartInput:
    """Input of one engine request: a block of tiles, or another part of a user's input."""

    parts: Sequence[Part]
    """Tiles, or other parts of the user's input, that the engine will compute. Their field ``output`` is still None."""
    prompt: Any = None
    """Rendered prompt of a single tile or other part. A block of tiles has ``tensors`` instead.

    Tiles without valid pixels have neither, because these tiles are not sent to the engine.
    """
    tensors: Mapping[str, Any] | None = None
    """Keyword arguments of ``forward`` for a block of tiles, with the tiles on axis 0. None for other inputs.

    The tensors are kept until the engine has answered, because the engine's worker may read them in shared memory.
    """
    is_block: bool = False
    """Whether this input is a block of tiles, so that the engine's output has the tiles on axis 0."""
    name_of: Callable[[int], str] = "part {}".format
    """Function that takes the index of a tile or other part, and returns its name for error messages."""
    pooling: PoolingParams | None = None
    """vLLM's ``PoolingParams`` for the request, or None for the defaults."""

    @property
    def index(self) -> int:
        """Index of the first tile (or other part) of this input among all tiles of the user's request."""
        return self.parts[0].index

    @property
    def is_sent(self) -> bool:
        """Whether the engine must compute this input. Tiles without valid pixels are not sent to the engine."""
        return self.prompt is not None or self.tensors is not None

    def __len__(self) -> int:
        return len(self.parts)

    def cut(self, count: int) -> tuple[PartInput, PartInput | None]:
        """Split a block of tiles after the first ``count`` tiles. Return both blocks. An empty second block is None.

        The blocks share memory.
        """
        if self.tensors is None or count >= len(self):
            return self, None
        first, rest = (
            replace(self, parts=self.parts[cut], tensors={name: array[cut] for name, array in self.tensors.items()})
            for cut in (slice(count), slice(count, None))
        )
        return first, rest

    def without_prompt(self) -> PartInput:
        """Return a copy of this input without the prompt, so that the prompt can be freed after it was sent.

        The copy is kept until the engine's output is decoded.
        """
        return replace(self, prompt=None)

    def named_in(self, error: BaseException) -> BaseException:
        """Return a copy of ``error`` whose message also names the tile or other part of the input that failed.

        For a block of tiles, the message names the failed tile if ``error.tile`` is set, else the first and last tile.
        """
        if not isinstance(error, MMOutError):
            return error
        parts = self.parts if error.tile is None else [self.parts[error.tile]]
        name = self.name_of(parts[0].index)
        if len(parts) > 1:
            name = f"{name} to {self.name_of(parts[-1].index)}"
        return with_name(error, name)


@dataclass(eq=False, slots=True)
class Request:
    """Request to the engine, for an input that fits one forward pass or for a part of a larger input.

    The caller sets the first group of fields. The second group is set when the input is read, and the third group when
    vLLM's frontend processes the request.
    """

    params: OutputParams
    """Options of the request. They are checked against the model once, when the request is accepted."""
    request_id: str = ""
    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None
    """OpenTelemetry headers ``traceparent`` and ``tracestate`` of the caller."""
    priority: int = 0
    """Priority of the request; lower values run earlier."""
    engine: int | None = None
    """Index of the data-parallel engine that runs the request, or None to let vLLM choose."""
    place: int = 0
    """Index of the input in the list passed to ``LLM.generate``."""
    may_be_empty: bool = False
    """Whether an input without valid pixels is accepted. It is True for scenes of a mosaic."""

    prompt: Any = None
    """Prompt for vLLM, rendered or not. Set to None after it was sent to the engine, to free its memory."""
    nbytes: int = 0
    """Size of the input's tensors in bytes. It is 0 for a part of a larger input, whose bytes `TileBudget` counts."""
    mark: Mapping[str, Any] = field(default_factory=dict)
    """Entries for ``PoolingParams.extra_kwargs`` that mark a request for decoding and carry its options to the worker.
    """
    pooling: PoolingParams | None = None
    """vLLM's ``PoolingParams`` for the request, or None for the defaults."""
    finish: Finish = as_it_is
    assumed: tuple[str, ...] = ()
    """Sentences about assumptions that were made in reading the input. Empty for a part of a larger input."""
    run: object = None
    """Scene or other `Run` (input computed in several engine requests) that this request is part of. None for a whole
    input.
    """
    part: PartInput | None = None
    """Tiles, or another part of a larger input, that this request computes. None for a whole input."""

    internal_id: str | None = None
    """Id that vLLM gave to the request, or None if vLLM has not accepted it yet. An accepted request must be delivered
    or aborted.
    """
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop that awaits the result, or None for a request of the synchronous ``LLM``."""
    admitted: float = 0.0
    """Time when the frontend accepted the request, in seconds of ``time.monotonic``."""
    steps: int = 0
    """Number of steps that an iterative model takes for the request."""
    reports: deque[MultimodalRequestOutput] = field(default_factory=deque)
    """Queue of all progress outputs that the caller has not fetched yet. vLLM's own queue keeps only the newest output.
    """
    due: deque[tuple[MultimodalRequestOutput, torch.Tensor]] = field(default_factory=deque)
    """Queue of engine outputs that wait until an earlier output of the request is decoded.

    Each entry is a tuple (result object for the caller, bytes to decode).
    """
    answer_bytes: int = 0
    """Size of the engine's latest output in bytes."""
    total: int = 1
    """Number of tiles of the request."""
    done: int = 0
    """Number of finished tiles of the request."""
    _shown: int = 0

    def pooling_params(self, task: Any) -> PoolingParams:
        """Return the ``PoolingParams`` to pass to vLLM. They carry the request's options in ``extra_kwargs``.

        ``task`` is the model's pooling task.
        """
        return wire.marked(self.pooling or PoolingParams(task=task), self.mark)

    def next_report(self) -> Progress | None:
        """Return the `Progress` to report with the next preview of the result. Return None after the last preview."""
        shown_after = self.mark.get(wire.REPORTS, ())
        if self._shown == len(shown_after):
            return None
        self._shown += 1
        return Progress(shown_after[self._shown - 1], self.steps, self._shown - 1)

    def release(self) -> None:
        """Drop the prompt and the ``finish`` callback of an ended request, to free their memory.

        Tasks of vLLM may keep this object alive after the request has ended.
        """
        self.prompt, self.finish = None, as_it_is


TICKET: ContextVar[object] = ContextVar("mmout_ticket", default=None)
"""Context variable with the request that is being added to vLLM's engine in the current task. A request that does not
come from this package leaves the variable at None."""


def ticket(kind: type[Kind]) -> Kind | None:
    """Return the request in the context variable `TICKET` if it is of class ``kind``, else None.

    The variable contains the request that the current task is adding to the engine.
    """
    request = TICKET.get()
    return request if isinstance(request, kind) else None


@contextmanager
def carrying(request: object) -> Iterator[None]:
    """Set the context variable `TICKET` to a request while vLLM adds it, so that the output processor finds it."""
    token = TICKET.set(request)
    try:
        yield
    finally:
        TICKET.reset(token)
