"""Hostile variants of what a model emits, and what the promises share in judging the answers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vllm_mmout.errors import MMOutError
from vllm_mmout.testing.case import BrokenPromiseError, Refused, outcome_difference, unpacked

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

_STOPS = 8
"""At how many of its lines a decode is stopped, an example."""


def spoilt(outputs: Raw, bad: float) -> Raw | None:
    """The group with request 0 all ``bad``; None where no tensor can hold that."""
    named = outputs if isinstance(outputs, dict) else {"": outputs}
    if not any(tensor.is_floating_point() for tensor in named.values()):
        return None
    changed = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}
    for tensor in changed.values():
        if tensor.is_floating_point():
            tensor[0] = bad
    return changed if isinstance(outputs, dict) else changed[""]


def without_length(outputs: Raw) -> Iterator[tuple[int, Raw]]:
    """Each axis that follows the input's size, and the group with length 0 there, in all tensors that have it.

    Axis 0 holds the requests. The length of axis 1, classes or features, is the model's own: it never is 0.
    """
    named = outputs if isinstance(outputs, dict) else {"": outputs}
    for axis in range(2, max(tensor.dim() for tensor in named.values())):
        cut = {name: tensor.narrow(axis, 0, 0) if tensor.dim() > axis else tensor for name, tensor in named.items()}
        yield axis, cut if isinstance(outputs, dict) else cut[""]


def answered(outcomes: Iterable[Any], where: str) -> None:
    """Check that each request got an object or was refused with an error that is meant for its client.

    Raises:
        BrokenPromiseError: an exception of another kind, or no object; the message ends with ``where``.

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
    expected: Sequence[torch.Tensor | Refused], found: Sequence[torch.Tensor | Refused], what: str
) -> None:
    """Hold what ``reduce`` sent for each request against what it should have sent, bit for bit; NaN equals NaN.

    Raises:
        BrokenPromiseError: they differ; the message begins with ``what``.

    """
    for request, (one, other) in enumerate(zip(expected, found, strict=True)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            different = None if torch.equal(one, other) else outcome_difference(unpacked(one), unpacked(other))
        else:
            different = outcome_difference(one, other)
        if different is not None:
            raise BrokenPromiseError(f"{what}: request {request}, {different}")


def stops(lines: int, sent: torch.Tensor | Refused) -> Iterable[int]:
    """At which of a call's lines to stop it: all of a few, some of many; others for other inputs."""
    step = max(1, -(-lines // _STOPS))
    start = zlib.crc32(sent.numpy().data) % step if isinstance(sent, torch.Tensor) else 0
    return range(start, lines, step)
