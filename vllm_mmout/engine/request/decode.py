"""Decoding of a request's output by its processors, in a thread of the decode pool."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.observer import Observer, blame
from vllm_mmout.engine.trace import add_stage, stage, tracing
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
from vllm_mmout.processors.part import Part

if TYPE_CHECKING:
    import torch
    from vllm.v1.engine.output_processor import RequestState

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.decode_pool import DecodeJob
    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.processors.base import Raw


@dataclass(slots=True)
class Decoding:
    """State of an output of a request that is being decoded."""

    state: RequestState
    request: Request
    binding: Binding
    shell: MultimodalRequestOutput
    """Output for the caller, whose ``outputs`` is set after the decode."""
    nbytes: int
    """Size of the engine's output in bytes."""
    observer: Observer
    arrived: float = field(default_factory=time.monotonic)
    """Time when the engine's output arrived, in seconds of ``time.monotonic``."""
    job: DecodeJob | None = None


class Decodings(dict[str, Decoding]):
    """Dict of the outputs that have not been delivered, by vLLM's internal request id. It notifies the observers."""

    def put(self, decoding: Decoding) -> None:
        """Add an output, and notify its observer."""
        self[decoding.state.request_id] = decoding
        decoding.observer.waits(decoding.nbytes)

    def take_out(self, decoding: Decoding) -> bool:
        """Remove an output, and notify its observer. Return False if the output was removed before."""
        removed = self.pop(decoding.state.request_id, None)
        if removed is not None:
            removed.observer.settled(removed.nbytes)
        return removed is not None

    def called(self, request_id: str, *, internal: bool) -> list[Decoding]:
        """Return the outputs of a request id.

        An internal id has at most one output. A caller's own id may have several, because callers may repeat ids.
        """
        names = [(key if internal else entry.state.external_req_id, entry) for key, entry in self.items()]
        return [entry for name, entry in names if name == request_id]


def decode_request(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode the buffer that the worker sent for a request.

    Return the output object, or a dict of output objects by processor if the request names several processors.
    """
    name = decoding.request.mark.get(wire.TRACED)
    with tracing(None if name is None else decoding.binding.traced(*name)):
        if name is not None and decoding.shell.finished:
            _trace_arrival(decoding, buffer)
        return _decode(decoding, buffer)


def _decode(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode the tensor of a request, see `decode_request`."""
    started = time.monotonic()
    request = decoding.request
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


def _trace_arrival(decoding: Decoding, buffer: torch.Tensor) -> None:
    """Record the stages between this process and the worker. The worker's times are at the end of the buffer."""
    from vllm_mmout.engine.worker.traced import Times

    times = Times.read(buffer)
    if times is not None:
        add_stage("queue", decoding.request.admitted, times.began)
        add_stage("transport", times.copied, decoding.arrived)


def _decode_one(decoding: Decoding, name: str, raw: Raw, pick: str | None) -> Any:
    """Decode the reduced output of a processor. Assemble and finish the result, unless it is a part to be joined."""
    processor, params = decoding.binding.processors[name], decoding.request.params
    started = time.monotonic()
    try:
        with stage("decode", processor=name):
            result = processor.decode(raw, params, processor.begin(params))
        if result is not None and not params.part:
            with stage("blend", processor=name):
                result = processor.assemble(iter([Part(0, None, result)]), params)
        if result is not None:
            if decoding.shell.finished:
                with nullcontext() if params.part else stage("write", processor=name):
                    result = decoding.request.finish(result, pick)
            decoding.observer.decoded(name, time.monotonic() - started)
            return result
    except MMOutError as error:
        blame(error, name)
        raise
    except BaseException as error:  # SystemExit too: a decoder must not end a thread that decodes other requests
        raise_interrupt(error)
        failed = DecodeError(f"{type(processor).__name__} ({name}) failed: {type_and_message(error)}")
        raise blame(failed, name) from error
    nothing = DecodeError(f"{type(processor).__name__} ({name}) returned None; decode() must return an output object")
    raise blame(nothing, name)
