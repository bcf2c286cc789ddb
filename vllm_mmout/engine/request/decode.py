"""One request's way through its processors, in a thread of the decode pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.engine import codec
from vllm_mmout.engine.log import logger
from vllm_mmout.engine.observer import SILENT, Observer, blame
from vllm_mmout.errors import DecodeError, ForwardError, InputError, MMOutError, ReduceError, type_and_message
from vllm_mmout.processors.base import OutputProcessor, Part

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

Finish: TypeAlias = Callable[[Any, str | None], Any]
"""Takes a decoded output and the pick's name (None for a single one that is no part); returns it laid on its input and
written."""


def as_it_is(output: Any, _pick: str | None) -> Any:
    """Finish nothing."""
    return output


@dataclass(frozen=True, slots=True)
class Decoding:
    """What decoding one request takes."""

    processors: Mapping[str, OutputProcessor]
    params: OutputParams
    finish: Finish
    request_id: str
    admitted: float
    """``time.monotonic()`` when the request entered the engine."""
    arrived: float
    """``time.monotonic()`` when the engine's output arrived."""
    observer: Observer = SILENT


def decode_request(decoding: Decoding, buffer: torch.Tensor) -> Any:
    """Decode what the worker sent for one request."""
    started = time.monotonic()
    unpacked = codec.unpack(buffer)
    if isinstance(unpacked, codec.Failure) and not unpacked.processor:
        raise (InputError if unpacked.kind == InputError.__name__ else ForwardError)(unpacked.message)
    if isinstance(unpacked, codec.Failure):
        failed = f"{unpacked.processor}.reduce failed in the worker: {unpacked.kind}: {unpacked.message}"
        raise blame(ReduceError(failed), unpacked.processor)
    several = isinstance(decoding.params.processor, tuple)
    named = several or decoding.params.part
    results = {name: _decode_one(decoding, name, raw, name if named else None) for name, raw in unpacked.items()}
    logger.debug(
        "request %s: %.1f ms in the engine, %.1f ms waiting, %.1f ms decoding (%s)",
        decoding.request_id,
        1e3 * (decoding.arrived - decoding.admitted),
        1e3 * (started - decoding.arrived),
        1e3 * (time.monotonic() - started),
        ", ".join(results),
    )
    return results if several else next(iter(results.values()))


def _decode_one(decoding: Decoding, name: str, raw: Raw, pick: str | None) -> Any:
    processor, params = decoding.processors[name], decoding.params
    started = time.monotonic()
    try:
        result = processor.decode(raw, params, processor.begin(params))
        if result is not None and not params.part:  # parts are joined elsewhere, with the others
            result = processor.assemble(iter([Part(0, None, result)]), params)
        if result is not None:
            finished = decoding.finish(result, pick)
            decoding.observer.decoded(name, time.monotonic() - started)
            return finished
    except MMOutError as error:
        blame(error, name)
        raise
    except BaseException as error:  # SystemExit too: a decoder must not end a thread that serves others
        failed = DecodeError(f"{type(processor).__name__} ({name}) failed: {type_and_message(error)}")
        raise blame(failed, name) from error
    nothing = DecodeError(f"{type(processor).__name__} ({name}) returned None; decode() must return an output object")
    raise blame(nothing, name)


@dataclass(slots=True)
class Admission:
    """What ``generate`` and the router tell each other while a request is added."""

    finish: Finish
    """What is done with the decoded output: laid on its input, written to a file."""
    internal_id: str | None = None
    """Set when the engine's frontend gets the request; from then on it must be aborted if it is not delivered."""

    def take_finish(self) -> Finish:
        """Hand over ``finish``; vLLM's tasks that start meanwhile keep this object, and must keep no input alive."""
        finish, self.finish = self.finish, as_it_is
        return finish


ADMISSION: ContextVar[Admission | None] = ContextVar("mmout_admission", default=None)
"""The admission of the request that is being added in this task, none for those that came by vLLM's own ways."""
