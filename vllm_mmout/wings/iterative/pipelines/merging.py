"""Calls of one network by several requests, run as one batch where they are alike.

Alike are calls of the same function with the same arguments but for tensors that have the rows of a request on axis 0,
and for numbers in tensors, as the time of a step, of which each row gets its request's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from vllm_mmout.errors import raise_interrupt
from vllm_mmout.wings.iterative.pipelines.calls import Call

_LATENTS: Final = 1 << 17
"""Numbers in the latents of a batch that is decoded: what is decoded has many times as many."""
_LATENTS_ON_CPU: Final = 1 << 14
"""The same where one picture already keeps all cores busy, and what is decoded is to stay in their caches."""
_NEAR: Final = {torch.float32: 1e-3, torch.float64: 1e-6}
"""How far a batch may differ from its calls run alone, of the largest value; of other dtypes `_NEAR_HALF`."""
_NEAR_HALF: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Form:
    """What calls must have in common to be run together."""

    key: tuple[Any, ...]
    rows: int
    """On axis 0, of this call."""
    leaves: tuple[Any, ...]
    kinds: tuple[str, ...]
    """Of each leaf: "rows" (on axis 0), "number" (one for all rows), "shared" (a tensor), or "" (no tensor)."""

    @classmethod
    def of(cls, call: Call) -> _Form | None:
        """The form of a call; None where no tensor tells how many rows there are."""
        leaves = tuple(_leaves((call.args, call.kwargs)))
        rows = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
        if not rows:
            return None
        kinds = tuple(_kind(leaf, rows) for leaf in leaves)
        said = tuple(_likeness(leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True))
        names = (tuple(call.kwargs), len(call.args))
        return cls((call.function, names, kinds, said), rows, leaves, kinds)

    @property
    def structure(self) -> tuple[Any, ...]:
        """What says whether the network can be run on a batch at all: without sizes and values."""
        return self.key[:3]

    def shares(self, other: _Form) -> bool:
        """Whether tensors that all rows have in common are the same in another call of this key."""
        pairs = zip(self.leaves, other.leaves, self.kinds, strict=True)
        return all(one is two or torch.equal(one, two) for one, two, kind in pairs if kind == "shared")


@dataclass(slots=True)
class Together:
    """Runs calls; remembers of which networks a batch gives what its calls give alone.

    Args:
        run: runs one call, or a batch of them.

    """

    run: Callable[[Call], Any]
    _batches: dict[Any, bool] = field(default_factory=dict)

    def __call__(self, calls: Sequence[Call]) -> list[Any]:
        """What each call gives, or the exception that it fails with, in their order."""
        results: list[Any] = [None] * len(calls)
        for group in _groups(calls):
            found = self._of_group([calls[row] for row, _ in group], [form for _, form in group])
            for (row, _), result in zip(group, found, strict=True):
                results[row] = result
        return results

    def _of_group(self, calls: Sequence[Call], forms: Sequence[_Form | None]) -> list[Any]:
        known = [form for form in forms if form is not None]
        fits = self._batches.get(known[0].structure) if len(calls) == len(known) > 1 else False
        merged = self._as_batch(calls, known) if fits else None
        if merged is not None:
            return merged
        alone = [self._tried(call) for call in calls]
        if fits is None and not any(isinstance(result, BaseException) for result in alone):
            merged = self._as_batch(calls, known)
            self._batches[known[0].structure] = merged is not None and all(map(_near, merged, alone))
        return alone

    def _as_batch(self, calls: Sequence[Call], forms: Sequence[_Form]) -> list[Any] | None:
        """What each of the calls gives in a batch; None where it fails: alone some may go, and others say why."""
        try:
            return _parts(self.run(_merged(calls[0], forms)), [form.rows for form in forms])
        except BaseException as error:  # noqa: BLE001 - of one of the calls, which each alone will tell
            raise_interrupt(error)
            return None

    def _tried(self, call: Call) -> Any:
        try:
            return self.run(call)
        except BaseException as error:  # noqa: BLE001 - the request's that called
            raise_interrupt(error)
            return error


def _groups(calls: Sequence[Call]) -> list[list[tuple[int, _Form | None]]]:
    """The calls that can be run together, with their places."""
    groups: list[list[tuple[int, _Form | None]]] = []
    for row, call in enumerate(calls):
        form = _Form.of(call)
        fitting = (group for group in groups if form and _joins(form, group, call))
        group = next(fitting, None)
        if group is None:
            groups.append(group := [])
        group.append((row, form))
    return groups


def _joins(form: _Form, group: Sequence[tuple[int, _Form | None]], call: Call) -> bool:
    first = group[0][1]
    if first is None or first.key != form.key or not form.shares(first):
        return False
    if call.name.endswith(".decode"):
        latents = next(leaf for leaf in form.leaves if isinstance(leaf, Tensor) and leaf.ndim > 1)
        most = _LATENTS_ON_CPU if latents.device.type == "cpu" else _LATENTS
        return latents.numel() * (len(group) + 1) <= most
    return True


def _kind(leaf: Any, rows: int) -> str:
    if not isinstance(leaf, Tensor):
        return ""
    if leaf.ndim == 0 or leaf.shape == (1,):
        return "number"
    if len(leaf) == rows:
        return "number" if leaf.ndim == 1 else "rows"
    return "shared"


def _likeness(leaf: Any, kind: str) -> Any:
    """What must be equal in two leaves, to compare and to hash."""
    if isinstance(leaf, torch.Generator):  # most decoders take one and use none; one that does gives something else
        return torch.Generator
    if isinstance(leaf, Tensor):
        shape = () if kind == "number" else leaf.shape[1:] if kind == "rows" else leaf.shape
        return leaf.dtype, leaf.device, shape
    plain = leaf is None or isinstance(leaf, bool | int | float | str | torch.dtype | torch.device)
    return (type(leaf), leaf) if plain else id(leaf)


def _merged(first: Call, forms: Sequence[_Form]) -> Call:
    leaves = []
    for kind, *values in zip(forms[0].kinds, *(form.leaves for form in forms), strict=True):
        if kind == "rows":
            leaves.append(torch.cat(values))
        elif kind == "number":
            leaves.append(torch.cat([v.reshape(-1).expand(f.rows) for v, f in zip(values, forms, strict=True)]))
        else:
            leaves.append(_copied(values[0]))
    following = iter(leaves)
    args, kwargs = _changed((first.args, dict(first.kwargs)), lambda _: next(following))
    return Call(first.name, first.function, args, kwargs)


def _copied(leaf: Any) -> Any:
    """What all rows have in common; of a source of noise a copy, whose own stays where it was."""
    if not isinstance(leaf, torch.Generator):
        return leaf
    made = torch.Generator(leaf.device)
    made.set_state(leaf.get_state())
    return made


def _parts(output: Any, rows: Sequence[int]) -> list[Any]:
    """An output, cut into the rows of each call."""
    total, parts, start = sum(rows), [], 0
    for count in rows:
        part = slice(start, start + count)

        def own(leaf: Any, part: slice = part) -> Any:
            of_rows = isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == total
            return leaf[part] if of_rows else leaf

        parts.append(_changed(output, own))
        start += count
    return parts


def _near(one: Any, two: Any) -> bool:
    """Whether two outputs say the same, but for rounding."""
    pairs = [pair for pair in zip(_leaves(one), _leaves(two), strict=True) if isinstance(pair[0], Tensor)]
    return all(_near_tensors(a, b) for a, b in pairs if a.ndim)  # a number without an axis is a loss of training


def _near_tensors(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or not one.numel():
        return one.shape == two.shape
    if not two.is_floating_point():
        return torch.equal(one, two)
    far = (one - two).abs().max() <= _NEAR.get(two.dtype, _NEAR_HALF) * (two.abs().max() + 1e-6)
    return bool(far) or bool(two.isnan().any())


def _leaves(tree: Any) -> Iterator[Any]:
    """What nested tuples, lists and dicts hold, outputs of diffusers and transformers too."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree


def _changed(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting with each of `_leaves` changed, in their order."""
    if isinstance(tree, dict):
        values = {name: _changed(value, change) for name, value in tree.items()}
        return values if type(tree) is dict else type(tree)(**values)
    if isinstance(tree, tuple | list):
        made = [_changed(value, change) for value in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return change(tree)
