"""`Case`: a test example that runs through an output processor as in the engine, and helpers to compare results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vllm_mmout.engine import wire
from vllm_mmout.errors import MMOutError, ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.raw import checked_group
from vllm_mmout.testing.equality import difference

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

Make: TypeAlias = Callable[[], OutputProcessor]
Equal: TypeAlias = Callable[[Any, Any], bool]

_NAME = "checked"


class BrokenPromiseError(AssertionError):
    """Error for an output processor that breaks a rule of the engine. The message has the rule and the input."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Result of a request whose ``reduce`` or ``decode`` raised an error."""

    error: BaseException
    where: str
    """Name of the method that raised: "reduce" or "decode"."""

    def __repr__(self) -> str:
        return f"{self.where}() raised {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Case:
    """Test example: an output processor, a model's output for several requests, and their common options."""

    make: Make
    """Output processor class, or function that creates a processor. It is called several times, because each process of
    an engine has its own processor."""
    outputs: Raw
    """Output of the model: a tensor or a dict of tensors, with the requests on axis 0."""
    params: OutputParams = field(default_factory=OutputParams)
    equal: Equal | None = None
    """Function that returns whether two outputs are equal. If ``equal`` is None, `difference` compares the outputs."""
    allow: Sequence[str] = ()
    """Names of the processor's attributes that may change during requests, such as a decoder that is loaded on first
    use."""

    @property
    def count(self) -> int:
        """Number of requests in ``outputs``."""
        return len(next(iter(_tensors(self.outputs))))

    @cached_property
    def alone(self) -> list[Any]:
        """Results of the requests, each run alone: an output object, or `Refused` if an error was raised.

        Each request runs in its own batch and with new processors.
        """
        return [
            self.decode(self.make(), packed)
            for row in range(self.count)
            for packed in self.reduce(self.make(), rows(self.outputs, [row]))
        ]

    def reduce(self, processor: OutputProcessor, outputs: Raw | None = None) -> list[torch.Tensor | Refused]:
        """Call ``reduce`` of a processor once for the outputs of all requests, and serialise the results.

        Return uint8 [bytes] for each request, or `Refused` for each if ``reduce`` raised an error.
        """
        group = copied(self.outputs if outputs is None else outputs)
        count = len(next(iter(_tensors(group))))
        try:
            reduced = processor.reduce(group, self.params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code: any error is an outcome
            return [Refused(error, "reduce")] * count
        return list(packed(reduced, count))

    def decode(self, processor: OutputProcessor, sent: torch.Tensor | Refused) -> Any:
        """Decode the bytes that `reduce` returned for a request into an output object, or return `Refused`."""
        if isinstance(sent, Refused):
            return sent
        try:
            part = processor.decode(unpacked(sent.clone()), self.params, processor.begin(self.params))
            return None if part is None else processor.assemble(iter([Part(0, None, part)]), self.params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code: any error is an outcome
            return Refused(error, "decode")

    def compare(self, expected: Iterable[Any], actual: Iterable[Any], message: str, first: int = 0) -> None:
        """Compare the results of requests with the expected results. Raise BrokenPromiseError at the first difference.

        The error's text has ``message`` and the request's number. The numbers start at ``first``.
        """
        for request, (left, right) in enumerate(zip(expected, actual, strict=True), start=first):
            if (different := outcome_difference(left, right, self.equal)) is not None:
                raise BrokenPromiseError(f"{message}: request {request}, {different}")


def outcome_difference(left: Any, right: Any, equal: Equal | None = None) -> str | None:
    """Describe how the results of two requests differ, or return None. Errors of the same class count as equal."""
    if isinstance(left, Refused) or isinstance(right, Refused):
        alike = isinstance(left, Refused) and isinstance(right, Refused) and type(left.error) is type(right.error)
        return None if alike else f"{_short(left)} and {_short(right)}"
    return difference(left, right, equal=equal)


def packed(reduced: Any, count: int) -> torch.Tensor:
    """Serialise the output of ``reduce`` for ``count`` requests into uint8 [count, bytes], as the engine does."""
    try:
        return wire.pack({_NAME: checked_group(reduced, count, "reduce()", ReduceError)})
    except Exception as error:  # a type, a dtype or a size that the codec does not support
        raise BrokenPromiseError(f"what reduce() returned cannot travel: {error}") from error


def unpacked(sent: torch.Tensor) -> Raw:
    """Deserialise a request's bytes, a 1-D uint8 tensor, into the tensors that a processor's ``decode`` takes.

    The tensors share the memory of ``sent``.
    """
    picks = wire.unpack(sent)
    assert not isinstance(picks, wire.Failure)  # noqa: S101 - for the type checker: `packed` never packs a failure
    return picks[_NAME]


def each(outputs: Raw, change: Callable[[torch.Tensor], torch.Tensor]) -> Raw:
    """Apply ``change`` to each tensor of a model's output. Return the results in the same structure."""
    if isinstance(outputs, torch.Tensor):
        return change(outputs)
    return {name: change(tensor) for name, tensor in outputs.items()}


def rows(outputs: Raw, indices: Sequence[int]) -> Raw:
    """Return a contiguous copy of a model's output for the requests ``indices``, in this order."""
    return each(outputs, lambda tensor: tensor[list(indices)].contiguous())  # indexing alone keeps the strides


def copied(outputs: Raw) -> Raw:
    """Copy a model's output, and keep the strides and storage offset of each tensor."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        storage: Any = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call] # torch's own
        return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    return each(outputs, copy)


def spoilt(outputs: Raw, bad: float) -> Raw | None:
    """Copy a model's output, with all floating-point values of request 0 replaced by ``bad``, such as NaN.

    Return None if no tensor is floating point.
    """
    if not any(tensor.is_floating_point() for tensor in _tensors(outputs)):
        return None

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone(memory_format=torch.contiguous_format)
        if changed.is_floating_point():
            changed[0] = bad
        return changed

    return each(outputs, spoil)


def without_length(outputs: Raw) -> Iterator[tuple[int, Raw]]:
    """Yield each axis of variable length, with ``outputs`` cut to length 0 along that axis, to test empty results.

    Axis 0 is left out, because it holds the requests. Axis 1 holds classes or features, whose number is fixed by the
    model and is never 0.
    """
    for axis in range(2, max(tensor.dim() for tensor in _tensors(outputs))):
        yield axis, each(outputs, partial(_without, axis))


def _without(axis: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.narrow(axis, 0, 0) if tensor.dim() > axis else tensor


def check_answered(outcomes: Iterable[Any], where: str) -> None:
    """Raise BrokenPromiseError unless the outcome of each request is an output or an `MMOutError`.

    ``where`` is added to the name of the failed method in the message.
    """
    for request, outcome in enumerate(outcomes):
        if outcome is None:
            raise BrokenPromiseError(
                f"request {request} got None{where}; decode() and assemble() must return an output object"
            )
        if isinstance(outcome, Refused) and not isinstance(outcome.error, MMOutError):
            raise BrokenPromiseError(
                f"request {request} broke {outcome.where}(){where}: {type(outcome.error).__name__}: {outcome.error};"
                " give a result, or raise an MMOutError (ReduceError, DecodeError) that says what is wrong with it"
            ) from outcome.error


def compare_sent(
    expected: Sequence[torch.Tensor | Refused], actual: Sequence[torch.Tensor | Refused], message: str
) -> None:
    """Compare two outputs of ``reduce`` request by request, bit for bit. NaN equals NaN.

    Raises BrokenPromiseError, with ``message`` in its text, at the first request that differs.
    """
    for request, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            different = None if torch.equal(left, right) else outcome_difference(unpacked(left), unpacked(right))
        else:
            different = outcome_difference(left, right)
        if different is not None:
            raise BrokenPromiseError(f"{message}: request {request}, {different}")


def stop_lines(line_count: int, sent: torch.Tensor | Refused) -> Iterable[int]:
    """Return the numbers of the lines where a test for data races pauses a call. There are up to 8 lines.

    ``line_count`` is the number of lines that the call executes. Line numbers count from 0, and are evenly spaced. They
    vary with ``sent``, the output of ``reduce``, so that examples pause at different lines.
    """
    step = max(1, -(-line_count // 8))
    start = zlib.crc32(sent.numpy().data) % step if isinstance(sent, torch.Tensor) else 0
    return range(start, line_count, step)


def _tensors(outputs: Raw) -> Iterable[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else outputs.values()


def _short(outcome: Any) -> str:
    return repr(outcome) if isinstance(outcome, Refused) else f"{type(outcome).__name__} {outcome!r}"[:120]
