"""Decode an engine output with the output processors of its request, in a thread of the decode pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.decode_pool import DecodeJob, Outcome
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
from vllm_mmout.processors.raw import each

if TYPE_CHECKING:
    import torch
    from vllm.v1.engine.output_processor import RequestState

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor, Raw


class Decoding(DecodeJob):
    """Job that decodes an engine output of a request."""

    __slots__ = ("arrived", "binding", "nbytes", "observer", "request", "shell", "state")

    def __init__(
        self,
        state: RequestState,
        request: Request,
        shell: MultimodalRequestOutput,
        buffer: torch.Tensor,
        *,
        binding: Binding,
        observer: Observer,
        deliver: Callable[[Decoding, Outcome], None],
    ) -> None:
        """Set up a job.

        Args:
            state: vLLM's state of the request.
            request: the request.
            shell: result object for the caller. Its ``outputs`` is empty until the decode has finished.
            buffer: the engine's output, uint8 [bytes].
            binding: processors of the model.
            observer: observer that the job reports to.
            deliver: callback that gets the job, and its result or exception.

        """
        super().__init__(
            lambda: decode_request(self, buffer),
            lambda outcome: deliver(self, outcome),
            binding.choice.pick(request.params.processor),
        )
        self.state = state
        self.request = request
        self.binding = binding
        self.shell = shell
        self.nbytes = buffer.nbytes
        self.observer = observer
        self.arrived = time.monotonic()
        """Time when the output arrived from the engine, in seconds of ``time.monotonic``."""


class Decodings(dict[str, Decoding]):
    """Engine outputs that were not yet delivered to the caller, by vLLM's internal request id. Metrics count them."""

    def put(self, decoding: Decoding) -> None:
        """Store an engine output until it is delivered, and report to its `Observer` that it waits to be decoded."""
        self[decoding.state.request_id] = decoding
        decoding.observer.waits(decoding.nbytes)

    def take_out(self, decoding: Decoding) -> bool:
        """Remove an engine output from this dict. Return False if the output was already removed.

        Also report to the engine's `Observer` that the output no longer waits to be decoded.
        """
        removed = self.pop(decoding.state.request_id, None)
        if removed is not None:
            removed.observer.settled(removed.nbytes)
        return removed is not None

    def for_request(self, request_id: str, *, internal: bool) -> list[Decoding]:
        """Return the engine outputs of a request that were not yet delivered to the caller.

        An internal id has at most one output. A caller's own id may have several, because callers may repeat ids.
        """
        names = [(key if internal else entry.state.external_req_id, entry) for key, entry in self.items()]
        return [entry for name, entry in names if name == request_id]


def decode_request(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode the bytes that the worker sent for a request.

    Return the output object, or a dict of output objects by processor if the request names several processors.
    """
    name = decoding.request.mark.get(wire.TRACED)
    with tracing(None if name is None else decoding.binding.traced(*name)):
        if name is not None and decoding.shell.finished:
            _trace_arrival(decoding, buffer)
        return _decode(decoding, buffer)


def _decode(decoding: Decoding, buffer: torch.Tensor) -> Any:
    started = time.monotonic()
    request = decoding.request
    unpacked = wire.unpack(buffer)
    if isinstance(unpacked, wire.Failure):
        raise _raised_in_worker(unpacked)
    several = isinstance(request.params.processor, tuple)
    named = several or request.params.part
    decode = _decode_one if request.part is None else _decode_parts
    results = {name: decode(decoding, name, raw, name if named else None) for name, raw in unpacked.items()}
    logger.debug(
        "request %s: %.1f ms in the engine, %.1f ms waiting, %.1f ms decoding (%s)",
        decoding.shell.request_id,
        1e3 * (decoding.arrived - request.admitted),
        1e3 * (started - decoding.arrived),
        1e3 * (time.monotonic() - started),
        ", ".join(results),
    )
    return results if several else next(iter(results.values()))


def _raised_in_worker(failure: wire.Failure) -> MMOutError:
    """Return the exception to raise for a failure in the worker."""
    error: MMOutError
    if failure.processor:
        error = ReduceError(f"{failure.processor}.reduce failed in the worker: {failure.kind}: {failure.message}")
        blame(error, failure.processor)
    else:
        error = (InputError if failure.kind == InputError.__name__ else ForwardError)(failure.message)
    error.tile = failure.tile
    return error


def _trace_arrival(decoding: Decoding, buffer: torch.Tensor) -> None:
    """Record in the trace file how long a request waited for the engine, and how long its output took to arrive.

    The worker has appended the times to ``buffer``.
    """
    from vllm_mmout.engine.worker.traced import Times

    times = Times.read(buffer)
    if times is not None:
        add_stage("queue", decoding.request.admitted, times.began)
        add_stage("transport", times.copied, decoding.arrived)


def _decode_one(decoding: Decoding, name: str, raw: Raw, result_name: str | None) -> Any:
    """Decode ``raw``, the output of a processor's ``reduce`` for a whole input. Georeference and save the result.

    ``name`` is the processor's name. ``result_name`` is equal to ``name``, or None if the request has only one result.
    """
    processor, params = decoding.binding.processors[name], decoding.request.params.of_run
    started = time.monotonic()
    with _blamed(processor, name):
        with stage("decode", processor=name):
            result = _decoded(processor, name, raw, params)
        with stage("blend", processor=name):
            result = processor.assemble(iter([Part(0, None, result)]), params)
        if result is None:
            raise _nothing(processor, name, "assemble")
        if decoding.shell.finished:
            with stage("write", processor=name):
                result = decoding.request.finish(result, result_name)
    decoding.observer.decoded(name, time.monotonic() - started)
    return result


def _decode_parts(decoding: Decoding, name: str, raw: Raw, result_name: str | None) -> Any:
    """Decode ``raw``, which a processor's ``reduce`` returned for a tile, a block of tiles or another part of an input.

    ``name`` is the processor's name. ``result_name`` is equal to ``name``.
    """
    processor, request = decoding.binding.processors[name], decoding.request
    started = time.monotonic()
    with stage("decode", processor=name):
        if request.part is None or not request.part.is_block:
            with _blamed(processor, name):
                outputs: Sequence[Any] = [_decoded(processor, name, raw, request.params)]
        else:
            outputs = _decoded_tiles(processor, name, raw, len(request.part), request.params)
    result = request.finish(outputs, result_name)
    decoding.observer.decoded(name, time.monotonic() - started)
    return result


def _decoded_tiles(processor: OutputProcessor, name: str, raw: Raw, count: int, params: OutputParams) -> Sequence[Any]:
    """Decode ``count`` tiles in one call if the processor supports that, else one by one. Errors name the tile."""
    try:
        at_once = processor.decode_tiles(raw, params)
    except BaseException as error:  # noqa: BLE001 - the tiles are decoded again, one by one
        raise_interrupt(error)
        logger.debug("%s (%s) failed on %d tiles at once", type(processor).__name__, name, count, exc_info=True)
        at_once = None
    if at_once is not None and len(at_once) == count:
        return at_once
    outputs: list[Any] = []
    try:
        with _blamed(processor, name):
            for place in range(count):
                outputs.append(_decoded(processor, name, each(itemgetter(place), raw), params))  # noqa: PERF401 - counted
    except MMOutError as error:
        error.tile = len(outputs)
        raise
    return outputs


def _decoded(processor: OutputProcessor, name: str, raw: Raw, params: OutputParams) -> Any:
    result = processor.decode(raw, params, processor.begin(params))
    if result is None:
        raise _nothing(processor, name, "decode")
    return result


def _nothing(processor: OutputProcessor, name: str, method: str) -> DecodeError:
    return DecodeError(f"{type(processor).__name__} ({name}) returned None; {method}() must return an output object")


@contextmanager
def _blamed(processor: OutputProcessor, name: str) -> Iterator[None]:
    """Convert an exception of the processor in the ``with`` block to an error that names the processor."""
    try:
        yield
    except MMOutError as error:
        blame(error, name)
        raise
    except BaseException as error:  # SystemExit too: a decoder must not end a thread that decodes other requests
        raise_interrupt(error)
        failed = DecodeError(f"{type(processor).__name__} ({name}) failed: {type_and_message(error)}")
        raise blame(failed, name) from error
