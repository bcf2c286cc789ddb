"""One request's way through its processors, in a thread of the decode pool."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vllm_mmout.engine import wire
from vllm_mmout.engine.observer import Observer, blame
from vllm_mmout.engine.request_output import Progress
from vllm_mmout.errors import (
    DecodeError,
    ForwardError,
    InputError,
    MMOutError,
    ReduceError,
    raise_interrupt,
    type_and_message,
)
from vllm_mmout.log import logger
from vllm_mmout.processors.base import Part

if TYPE_CHECKING:
    import torch

    from vllm_mmout.engine.decode_pool import Job
    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor, RoutedRequestState
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

Kind = TypeVar("Kind")

Finish: TypeAlias = Callable[[Any, str | None], Any]
"""Takes a decoded output and the pick's name (None for a single one that is no part); returns it laid on its input and
written."""


def as_it_is(output: Any, _pick: str | None) -> Any:
    """Finish nothing."""
    return output


@dataclass(slots=True)
class Mark:
    """What a marked request carries from admission to delivery."""

    params: OutputParams
    finish: Finish
    loop: asyncio.AbstractEventLoop | None
    """The loop whose task waits for the result; None in ``LLM``."""
    router: RoutedOutputProcessor
    admitted: float
    traced: Traced | None = None
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, in sentences."""
    reports: Reporting | None = None
    due: deque[tuple[MultimodalRequestOutput, torch.Tensor]] = field(default_factory=deque)
    """What is to be decoded when that before it has been delivered."""


@dataclass(slots=True)
class Reporting:
    """A request that is shown before its end."""

    steps: Sequence[int]
    """After which it is shown."""
    total: int
    """All its steps."""
    ready: deque[MultimodalRequestOutput]
    """What nobody has taken."""
    begun: int = 0

    def next(self) -> Progress | None:
        """How far the request is with the next report; None: it has had all."""
        if self.begun == len(self.steps):
            return None
        self.begun += 1
        return Progress(self.steps[self.begun - 1], self.total, self.begun - 1)


@dataclass(slots=True)
class Decoding:
    """A request that the engine is done with and whose output is being decoded."""

    state: RoutedRequestState
    mark: Mark
    shell: MultimodalRequestOutput
    nbytes: int
    observer: Observer
    arrived: float = field(default_factory=time.monotonic)
    job: Job | None = None


class Decodings(dict[str, Decoding]):
    """Those that have not been delivered, by internal request id; observers hear of each when it comes and goes."""

    def put(self, decoding: Decoding) -> None:
        """Take one in."""
        self[decoding.state.request_id] = decoding
        decoding.observer.waits(decoding.nbytes)

    def take_out(self, decoding: Decoding) -> bool:
        """Let one go; False if it was none of them any more."""
        taken = self.pop(decoding.state.request_id, None)
        if taken is not None:
            taken.observer.settled(taken.nbytes)
        return taken is not None

    def called(self, request_id: str, *, internal: bool) -> list[Decoding]:
        """Those of an internal request id, one at most, or of a caller's own, which may repeat."""
        names = [(key if internal else entry.state.external_req_id, entry) for key, entry in self.items()]
        return [entry for name, entry in names if name == request_id]


def decode_request(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode what the worker sent for one request."""
    started = time.monotonic()
    if decoding.mark.traced is not None and decoding.shell.finished:
        _trace_arrival(decoding, decoding.mark.traced, buffer)
    unpacked = wire.unpack(buffer)
    if isinstance(unpacked, wire.Failure) and not unpacked.processor:
        raise (InputError if unpacked.kind == InputError.__name__ else ForwardError)(unpacked.message)
    if isinstance(unpacked, wire.Failure):
        failed = f"{unpacked.processor}.reduce failed in the worker: {unpacked.kind}: {unpacked.message}"
        raise blame(ReduceError(failed), unpacked.processor)
    mark = decoding.mark
    several = isinstance(mark.params.processor, tuple)
    named = several or mark.params.part
    results = {name: _decode_one(decoding, name, raw, name if named else None) for name, raw in unpacked.items()}
    logger.debug(
        "request %s: %.1f ms in the engine, %.1f ms waiting, %.1f ms decoding (%s)",
        decoding.shell.request_id,
        1e3 * (decoding.arrived - mark.admitted),
        1e3 * (started - decoding.arrived),
        1e3 * (time.monotonic() - started),
        ", ".join(results),
    )
    return results if several else next(iter(results.values()))


def _trace_arrival(decoding: Decoding, traced: Traced, buffer: torch.Tensor) -> None:
    """Tell of what lies between this process and the worker, whose times came behind the result."""
    from vllm_mmout.engine.worker.traced import Times

    times = Times.read(buffer)
    if times is not None:
        traced.stage("queue", decoding.mark.admitted, times.began)
        traced.stage("transport", times.copied, decoding.arrived)


def _decode_one(decoding: Decoding, name: str, raw: Raw, pick: str | None) -> Any:
    processor, params = decoding.mark.router.binding.processors[name], decoding.mark.params
    traced = decoding.mark.traced
    started = time.monotonic()
    try:
        result = processor.decode(raw, params, processor.begin(params))
        decoded = 0.0 if traced is None else traced.stage("decode", started, processor=name)
        if result is not None and not params.part:  # parts are joined elsewhere, with the others
            result = processor.assemble(iter([Part(0, None, result)]), params)
            joined = 0.0 if traced is None else traced.stage("blend", decoded, processor=name)
        if result is not None:
            finished = decoding.mark.finish(result, pick) if decoding.shell.finished else result
            if traced is not None and decoding.shell.finished and not params.part:
                traced.stage("write", joined, processor=name)
            decoding.observer.decoded(name, time.monotonic() - started)
            return finished
    except MMOutError as error:
        blame(error, name)
        raise
    except BaseException as error:  # SystemExit too: a decoder must not end a thread that serves others
        raise_interrupt(error)
        failed = DecodeError(f"{type(processor).__name__} ({name}) failed: {type_and_message(error)}")
        raise blame(failed, name) from error
    nothing = DecodeError(f"{type(processor).__name__} ({name}) returned None; decode() must return an output object")
    raise blame(nothing, name)


@dataclass(slots=True)
class Admission:
    """What ``generate`` and the router tell each other while a request is added."""

    finish: Finish
    traced: Traced | None = None
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, in sentences."""
    reports: deque[MultimodalRequestOutput] = field(default_factory=deque)
    """What comes before the result; each is also put into the request's queue, where a later one may take its place."""
    internal_id: str | None = None
    """Set when the engine's frontend gets the request; from then on it must be aborted if it is not delivered."""

    def take_finish(self) -> Finish:
        """Hand over ``finish``; vLLM's tasks that start meanwhile keep this object, and must keep no input alive."""
        finish, self.finish = self.finish, as_it_is
        return finish


TICKET: ContextVar[object] = ContextVar("mmout_ticket", default=None)
"""What goes beside the request that is being added in this task, None where it came by vLLM's own ways."""


def ticket(kind: type[Kind]) -> Kind | None:
    """The ticket of the request that is being added, where it is of this kind."""
    found = TICKET.get()
    return found if isinstance(found, kind) else None


@contextmanager
def carrying(carried: object) -> Iterator[None]:
    """Add a request with a ticket."""
    token = TICKET.set(carried)
    try:
        yield
    finally:
        TICKET.reset(token)
