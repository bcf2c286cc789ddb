"""Decode the output of one request by its processors, in a thread of the decode pool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.observer import Observer, blame
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
    from vllm.v1.engine.output_processor import RequestState

    from vllm_mmout.engine.decode_pool import Job
    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.processors.base import OutputProcessor, Raw


@dataclass(slots=True)
class Decoding:
    """An output of a request on its way through its processors."""

    state: RequestState
    request: Request
    processors: Mapping[str, OutputProcessor]
    """The engine's, by name."""
    shell: MultimodalRequestOutput
    """Output for the caller, without its object."""
    nbytes: int
    observer: Observer
    arrived: float = field(default_factory=time.monotonic)
    """Time when the engine's output arrived, in seconds of ``time.monotonic``."""
    job: Job | None = None


class Decodings(dict[str, Decoding]):
    """The outputs that have not been delivered, by vLLM's internal request id; observers hear of each."""

    def put(self, decoding: Decoding) -> None:
        """Add an output, and tell its observer."""
        self[decoding.state.request_id] = decoding
        decoding.observer.waits(decoding.nbytes)

    def take_out(self, decoding: Decoding) -> bool:
        """Remove the output of a request; return False if it was removed before."""
        removed = self.pop(decoding.state.request_id, None)
        if removed is not None:
            removed.observer.settled(removed.nbytes)
        return removed is not None

    def called(self, request_id: str, *, internal: bool) -> list[Decoding]:
        """Return the outputs of an internal request id, one at most, or of a caller's own id, which may repeat."""
        names = [(key if internal else entry.state.external_req_id, entry) for key, entry in self.items()]
        return [entry for name, entry in names if name == request_id]


def decode_request(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode the tensor that the worker sent for a request; return its output, or its outputs by processor."""
    started = time.monotonic()
    request = decoding.request
    if request.traced is not None and decoding.shell.finished:
        _trace_arrival(decoding, request.traced, buffer)
    unpacked = wire.unpack(buffer)
    if isinstance(unpacked, wire.Failure) and not unpacked.processor:
        raise (InputError if unpacked.kind == InputError.__name__ else ForwardError)(unpacked.message)
    if isinstance(unpacked, wire.Failure):
        failed = f"{unpacked.processor}.reduce failed in the worker: {unpacked.kind}: {unpacked.message}"
        raise blame(ReduceError(failed), unpacked.processor)
    several = isinstance(request.params.processor, tuple)
    named = several or request.params.part
    results = {name: _decode_one(decoding, name, raw, name if named else None) for name, raw in unpacked.items()}
    logger.debug(
        "request %s: %.1f ms in the engine, %.1f ms waiting, %.1f ms decoding (%s)",
        decoding.shell.request_id,
        1e3 * (decoding.arrived - request.admitted),
        1e3 * (started - decoding.arrived),
        1e3 * (time.monotonic() - started),
        ", ".join(results),
    )
    return results if several else next(iter(results.values()))


def _trace_arrival(decoding: Decoding, traced: Traced, buffer: torch.Tensor) -> None:
    """Trace the ways between this process and the worker, whose times follow the result in the buffer."""
    from vllm_mmout.engine.worker.traced import Times

    times = Times.read(buffer)
    if times is not None:
        traced.stage("queue", decoding.request.admitted, times.began)
        traced.stage("transport", times.copied, decoding.arrived)


def _decode_one(decoding: Decoding, name: str, raw: Raw, pick: str | None) -> Any:
    """Decode what one processor gets; a part is left to those who join it with the others."""
    processor, params = decoding.processors[name], decoding.request.params
    traced = decoding.request.traced
    started = time.monotonic()
    try:
        result = processor.decode(raw, params, processor.begin(params))
        decoded = 0.0 if traced is None else traced.stage("decode", started, processor=name)
        if result is not None and not params.part:
            result = processor.assemble(iter([Part(0, None, result)]), params)
            joined = 0.0 if traced is None else traced.stage("blend", decoded, processor=name)
        if result is not None:
            finished = decoding.request.finish(result, pick) if decoding.shell.finished else result
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
