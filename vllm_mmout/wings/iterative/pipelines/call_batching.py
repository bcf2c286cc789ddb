"""Batch the calls that several requests make to the same network.

Calls are batched if they call the same function with the same arguments. Two kinds of tensors may differ: those with a
request's rows on axis 0, and single numbers, such as the time of a step. Each row gets its own request's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from vllm_mmout.errors import raise_interrupt
from vllm_mmout.wings.iterative.pipelines.network_calls import NetworkCall

_MAX_LATENTS: Final = 1 << 17
"""Maximum number of latent values that a GPU decodes in one batch. It limits memory, because the decoded picture is
many times larger."""
_MAX_LATENTS_ON_CPU: Final = 1 << 14
"""Maximum number of latent values that a CPU decodes in one batch, small enough that the decoded pictures fit into its
caches."""
_TOLERANCES: Final = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Tolerance by dtype when the results of a batched call are compared with the results of unbatched calls.

A tolerance is a fraction of the largest absolute value in the unbatched result.
"""
_OTHER_TOLERANCE: Final = 0.05
"""Tolerance for floating point dtypes that are not in `_TOLERANCES`, such as bfloat16.

The tolerance is a fraction of the largest absolute value in the unbatched result.
"""


@dataclass(frozen=True, slots=True)
class _BatchSignature:
    """Description of a network call by its arguments. Calls with an equal ``key`` can run as one batch."""

    key: tuple[Any, ...]
    rows: int
    """Batch size of the call."""
    leaves: tuple[Any, ...]
    kinds: tuple[str, ...]
    """Kind of each argument in ``leaves``: "rows", "number", "shared" or "".

    A "rows" tensor has a batch axis. A "number" tensor holds one number, or one number per row of the batch. A "shared"
    tensor must be equal in all calls. Arguments that are not tensors have the kind "".
    """

    @classmethod
    def of(cls, call: NetworkCall) -> _BatchSignature | None:
        """Describe the function and arguments of a call. Return None if its batch size is unknown or 0.

        The batch size is the length of axis 0 of the first tensor with two or more axes. A tensor with one axis may
        hold values that belong to the whole batch.
        """
        leaves = tuple(_leaves((call.args, call.kwargs)))
        rows = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
        if not rows:
            return None
        kinds = tuple(_kind(leaf, rows) for leaf in leaves)
        likenesses = tuple(_batch_key(leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True))
        names = (tuple(call.kwargs), len(call.args))
        return cls((call.function, names, kinds, likenesses), rows, leaves, kinds)

    @property
    def structure(self) -> tuple[Any, ...]:
        """Structure of the call: the function, the argument names and the argument kinds, without sizes and values."""
        return self.key[:3]

    def shares(self, other: _BatchSignature) -> bool:
        """Return whether this call and the call ``other`` can share a batch.

        The caller has checked that ``key`` is equal. This method compares the "shared" tensors: a batch has only one
        copy of a tensor that has neither a row nor a number for each call.
        """
        pairs = zip(self.leaves, other.leaves, self.kinds, strict=True)
        return all(one is two or torch.equal(one, two) for one, two, kind in pairs if kind == "shared")


@dataclass(slots=True)
class CallBatcher:
    """Callable that runs the network calls of several requests as batches if this does not change their results.

    Calls of a new kind run separately and as a batch. If the results are nearly equal, later calls of this kind are
    batched.

    Args:
        run: a function that runs one call, which may be a batch.

    """

    run: Callable[[NetworkCall], Any]
    _batches: dict[Any, bool] = field(default_factory=dict)

    def __call__(self, calls: Sequence[NetworkCall]) -> list[Any]:
        """Run network calls, in batches if possible. Return each call's result, or its exception, in the same order."""
        results: list[Any] = [None] * len(calls)
        for group in _groups(calls):
            outcomes = self._of_group([calls[row] for row, _ in group], [signature for _, signature in group])
            for (row, _), result in zip(group, outcomes, strict=True):
                results[row] = result
        return results

    def _of_group(self, calls: Sequence[NetworkCall], signatures: Sequence[_BatchSignature | None]) -> list[Any]:
        known_signatures = [signature for signature in signatures if signature is not None]
        fits = self._batches.get(known_signatures[0].structure) if len(calls) == len(known_signatures) > 1 else False
        merged = self._as_batch(calls, known_signatures) if fits else None
        if merged is not None:
            return merged
        alone = [self._tried(call) for call in calls]
        if fits is None and not any(isinstance(result, BaseException) for result in alone):
            merged = self._as_batch(calls, known_signatures)
            self._batches[known_signatures[0].structure] = merged is not None and all(map(_nearly_equal, merged, alone))
        return alone

    def _as_batch(self, calls: Sequence[NetworkCall], signatures: Sequence[_BatchSignature]) -> list[Any] | None:
        """Run the calls as one batch, and return the result of each call. Return None if the batch raises an error."""
        try:
            return _split_rows(self.run(_merged(calls[0], signatures)), [signature.rows for signature in signatures])
        except BaseException as error:  # noqa: BLE001 - one call's error, which it raises again when it runs alone
            raise_interrupt(error)
            return None

    def _tried(self, call: NetworkCall) -> Any:
        try:
            return self.run(call)
        except BaseException as error:  # noqa: BLE001 - an error of the request that made the call
            raise_interrupt(error)
            return error


def _groups(calls: Sequence[NetworkCall]) -> list[list[tuple[int, _BatchSignature | None]]]:
    """Group calls that can run as one batch. A group is a list with the index and the signature of each call."""
    groups: list[list[tuple[int, _BatchSignature | None]]] = []
    for row, call in enumerate(calls):
        signature = _BatchSignature.of(call)
        fitting = (group for group in groups if signature and _joins(signature, group, call))
        group = next(fitting, None)
        if group is None:
            groups.append(group := [])
        group.append((row, signature))
    return groups


def _joins(signature: _BatchSignature, group: Sequence[tuple[int, _BatchSignature | None]], call: NetworkCall) -> bool:
    first = group[0][1]
    if first is None or first.key != signature.key or not signature.shares(first):
        return False
    if call.name.endswith(".decode"):
        latents = next(leaf for leaf in signature.leaves if isinstance(leaf, Tensor) and leaf.ndim > 1)
        max_latents = _MAX_LATENTS_ON_CPU if latents.device.type == "cpu" else _MAX_LATENTS
        return latents.numel() * (len(group) + 1) <= max_latents
    return True


def _kind(leaf: Any, rows: int) -> str:
    if not isinstance(leaf, Tensor):
        return ""
    if leaf.ndim == 0 or leaf.shape == (1,):
        return "number"
    if len(leaf) == rows:
        return "number" if leaf.ndim == 1 else "rows"
    return "shared"


def _batch_key(leaf: Any, kind: str) -> Any:
    """Return a hashable description of a network call's argument. Only calls with equal descriptions can be batched."""
    # Most decoders accept a generator and ignore it. A batch with a decoder that uses it differs, and is given up.
    if isinstance(leaf, torch.Generator):
        return torch.Generator
    if isinstance(leaf, Tensor):
        shape = () if kind == "number" else leaf.shape[1:] if kind == "rows" else leaf.shape
        return leaf.dtype, leaf.device, shape
    by_value = leaf is None or isinstance(leaf, bool | int | float | str | torch.dtype | torch.device)
    return (type(leaf), leaf) if by_value else id(leaf)


def _merged(first: NetworkCall, signatures: Sequence[_BatchSignature]) -> NetworkCall:
    leaves = []
    for kind, *values in zip(signatures[0].kinds, *(signature.leaves for signature in signatures), strict=True):
        if kind == "rows":
            leaves.append(torch.cat(values))
        elif kind == "number":
            leaves.append(torch.cat([v.reshape(-1).expand(f.rows) for v, f in zip(values, signatures, strict=True)]))
        else:
            leaves.append(_copied(values[0]))
    following = iter(leaves)
    args, kwargs = _map_values((first.args, dict(first.kwargs)), lambda _: next(following))
    return NetworkCall(first.name, first.function, args, kwargs)


def _copied(argument: Any) -> Any:
    """Copy a random generator, so that a batch does not advance the original. Return any other argument unchanged."""
    if not isinstance(argument, torch.Generator):
        return argument
    generator = torch.Generator(argument.device)
    generator.set_state(argument.get_state())
    return generator


def _split_rows(output: Any, rows: Sequence[int]) -> list[Any]:
    """Split the output of a batched call into an output for each call. ``rows`` are the batch sizes of the calls."""
    total, parts, start = sum(rows), [], 0
    for count in rows:
        part = slice(start, start + count)

        def own(leaf: Any, part: slice = part) -> Any:
            of_rows = isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == total
            return leaf[part] if of_rows else leaf

        parts.append(_map_values(output, own))
        start += count
    return parts


def _nearly_equal(one: Any, two: Any) -> bool:
    """Return whether the tensors in two network outputs are equal within the tolerance of their dtype."""
    pairs = [pair for pair in zip(_leaves(one), _leaves(two), strict=True) if isinstance(pair[0], Tensor)]
    # A tensor without axes is ignored: it is a training loss.
    return all(_near_tensors(a, b) for a, b in pairs if a.ndim)


def _near_tensors(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or not one.numel():
        return one.shape == two.shape
    if not two.is_floating_point():
        return torch.equal(one, two)
    # NaN compares as unequal. A call that gives NaN says nothing about other calls, so it does not allow their batch.
    return bool((one - two).abs().max() <= _TOLERANCES.get(two.dtype, _OTHER_TOLERANCE) * (two.abs().max() + 1e-6))


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield all values in nested tuples, lists and dicts. Outputs of diffusers and transformers are such structures."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree


def _map_values(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested tuples, lists and dicts, with ``change`` applied to each value."""
    if isinstance(tree, dict):
        values = {name: _map_values(value, change) for name, value in tree.items()}
        return values if type(tree) is dict else type(tree)(**values)
    if isinstance(tree, tuple | list):
        items = [_map_values(value, change) for value in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return change(tree)
