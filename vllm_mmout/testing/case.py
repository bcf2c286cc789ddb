"""One example of a check, and the way of its requests through a processor as the engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vllm_mmout.engine import codec
from vllm_mmout.errors import ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor, Part
from vllm_mmout.processors.raw import checked_group
from vllm_mmout.testing.equality import difference

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

Make: TypeAlias = Callable[[], OutputProcessor]
Equal: TypeAlias = Callable[[Any, Any], bool]

_NAME = "checked"


class BrokenPromiseError(AssertionError):
    """A processor does not keep what the engine relies on; the message says what, and on which input."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What a request gets whose ``reduce`` or ``decode`` raised: the error."""

    error: BaseException
    where: str
    """"reduce" or "decode"."""

    def __repr__(self) -> str:
        return f"{self.where}() raised {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Case:
    """A processor, what a model emits for a group of requests, and the options that these share."""

    make: Make
    """The class, or what makes a fresh instance: every process has its own."""
    outputs: Raw
    """A tensor or a dict of tensors with the requests on axis 0."""
    params: OutputParams = field(default_factory=OutputParams)
    equal: Equal | None = None
    """Compares two outputs, where `difference` cannot."""
    allow: Sequence[str] = ()
    """Attributes that may change while requests are served: a decoder that is loaded when it is first needed."""

    @property
    def count(self) -> int:
        """How many requests there are."""
        return len(next(iter(_tensors(self.outputs))))

    @cached_property
    def alone(self) -> list[Any]:
        """What each request gets that is served alone, by fresh instances: an output object, or `Refused`."""
        return [
            self.decode(self.make(), packed)
            for row in range(self.count)
            for packed in self.reduce(self.make(), rows(self.outputs, [row]))
        ]

    def reduce(self, processor: OutputProcessor, outputs: Raw | None = None) -> list[torch.Tensor | Refused]:
        """Reduce a group once, as the worker does, and pack what came out; the group is not modified.

        Args:
            processor: the worker's instance.
            outputs: the group; all requests of the case by default.

        Returns:
            For each request uint8 [bytes], or why there is none.

        Raises:
            BrokenPromiseError: what ``reduce`` returned cannot travel.

        """
        group = copied(self.outputs if outputs is None else outputs)
        count = len(next(iter(_tensors(group))))
        try:
            reduced = processor.reduce(group, self.params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an author's code: what it raises is a result
            return [Refused(error, "reduce")] * count
        return list(packed(reduced, count))

    def decode(self, processor: OutputProcessor, sent: torch.Tensor | Refused) -> Any:
        """Make one request's output, as a thread of the frontend does: an output object, or `Refused`."""
        if isinstance(sent, Refused):
            return sent
        try:
            part = processor.decode(unpacked(sent.clone()), self.params, processor.begin(self.params))
            return None if part is None else processor.assemble(iter([Part(0, None, part)]), self.params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            return Refused(error, "decode")

    def compare(self, expected: Iterable[Any], found: Iterable[Any], what: str, first: int = 0) -> None:
        """Hold what requests got against what they should have got; ``first`` is the number of the first of them.

        Raises:
            BrokenPromiseError: one differs; the message begins with ``what``, and names the request and the place.

        """
        for request, (one, other) in enumerate(zip(expected, found, strict=True), start=first):
            if (different := outcome_difference(one, other, self.equal)) is not None:
                raise BrokenPromiseError(f"{what}: request {request}, {different}")


def outcome_difference(one: Any, other: Any, equal: Equal | None = None) -> str | None:
    """Where two outcomes differ, in words. Refusals are alike if their classes are: messages may count requests."""
    if isinstance(one, Refused) or isinstance(other, Refused):
        alike = isinstance(one, Refused) and isinstance(other, Refused) and type(one.error) is type(other.error)
        return None if alike else f"{_short(one)} and {_short(other)}"
    return difference(one, other, equal=equal)


def packed(reduced: Any, count: int) -> torch.Tensor:
    """What ``reduce`` returned for ``count`` requests as it travels: uint8 [count, bytes].

    Raises:
        BrokenPromiseError: it cannot travel.

    """
    try:
        return codec.pack({_NAME: checked_group(reduced, count, "reduce()", ReduceError)})
    except Exception as error:  # a kind, a dtype or a size that cannot travel
        raise BrokenPromiseError(f"what reduce() returned cannot travel: {error}") from error


def unpacked(sent: torch.Tensor) -> Raw:
    """What ``decode`` is given of one request's uint8 [bytes]: views of one buffer, as in the frontend."""
    picks = codec.unpack(sent)
    assert not isinstance(picks, codec.Failure)  # noqa: S101 - for the type checker: nothing here packs one
    return picks[_NAME]


def rows(outputs: Raw, places: Sequence[int]) -> Raw:
    """Some requests of a group, in the order of ``places``: copies that are contiguous, whatever the group's layout."""
    if isinstance(outputs, torch.Tensor):
        return outputs[list(places)].contiguous()  # indexing alone keeps the layout
    return {name: tensor[list(places)].contiguous() for name, tensor in outputs.items()}


def copied(outputs: Raw) -> Raw:
    """A copy that lies in memory as the original does."""
    if isinstance(outputs, torch.Tensor):
        return _copied(outputs)
    return {name: _copied(tensor) for name, tensor in outputs.items()}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    strides, offset = tensor.stride(), tensor.storage_offset()
    return tensor.new_empty(0).set_(_bytes(tensor), offset, tensor.shape, strides)


def _bytes(tensor: torch.Tensor) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call] # torch's own
    return storage


def _tensors(outputs: Raw) -> Iterable[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else outputs.values()


def _short(outcome: Any) -> str:
    return repr(outcome) if isinstance(outcome, Refused) else f"{type(outcome).__name__} {outcome!r}"[:120]
