from __future__ import annotations

import collections
import itertools
import random
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch tensors are among what is looked at")

from vllm_mmout.testing.state import changes, snapshot  # noqa: E402 - needs torch

pytestmark = pytest.mark.engine


class Slotted:
    __slots__ = ("__weakref__", "value")

    def __init__(self, value):
        self.value = value


@dataclass
class Inner:
    values: list[int] = field(default_factory=list)


class Holder:
    """Holds one of everything."""

    shared = [0]  # noqa: RUF012 - a mistake that is to be found

    def __init__(self):
        self.number = 0
        self.table = {"a": [1, 2], "b": {"c": (3,)}}
        self.set = {1}
        self.queue = collections.deque([1])
        self.array = np.zeros(100_000)
        self.tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
        self.network = torch.nn.Linear(2, 2)
        self.slotted = Slotted(1)
        self.inner = Inner()
        self.python_random = random.Random(0)  # noqa: S311 - no secret
        self.numpy_random = np.random.default_rng(0)
        self.torch_random = torch.Generator()
        self.count = itertools.count()
        self.lock = threading.Lock()
        self.function = len
        self.itself = self
        self.local = threading.local()


CHANGES = {
    "self.number": lambda holder: setattr(holder, "number", 1),
    "self.new": lambda holder: setattr(holder, "new", 1),
    "self.table['a'][1]": lambda holder: holder.table["a"].__setitem__(1, 9),
    "self.table['b']['c'][1]": lambda holder: holder.table["b"].update(c=(3, 4)),
    "self.set": lambda holder: holder.set.add(2),
    "self.queue[1]": lambda holder: holder.queue.append(2),
    "self.array": lambda holder: holder.array.__setitem__(77_777, 1),
    "self.tensor": lambda holder: holder.tensor.fill_(1),
    "self.network._parameters['weight']": lambda holder: holder.network.weight.data.zero_(),
    "self.slotted.value": lambda holder: setattr(holder.slotted, "value", 2),
    "self.inner.values[0]": lambda holder: holder.inner.values.append(1),
    "self.python_random": lambda holder: holder.python_random.random(),
    "self.numpy_random": lambda holder: holder.numpy_random.random(),
    "self.torch_random": lambda holder: torch.rand(1, generator=holder.torch_random),
    "self.count": lambda holder: next(holder.count),
    "self.local.seen": lambda holder: setattr(holder.local, "seen", 1),
    "Holder.shared[0]": lambda holder: holder.shared.__setitem__(0, holder.shared[0] + 1),
}


@pytest.mark.parametrize("place", CHANGES)
def test_changes_are_found_where_they_are(place):
    """A change at any depth shows at its place; without a change nothing shows."""
    holder = Holder()
    before = snapshot(holder)
    assert changes(before, snapshot(holder)) == []
    CHANGES[place](holder)
    found = changes(before, snapshot(holder))
    assert any(text.startswith(f"{place} was ") for text in found), found


@pytest.mark.parametrize("name", ["number", "table", "tensor", "network", "shared", "python_random"])
def test_allowed_names_are_passed_over(name):
    """What may change does not show, however deep it changes."""
    holder = Holder()
    before = snapshot(holder, allow=[name])
    for place, change in CHANGES.items():
        if f".{name}" in place:
            change(holder)
    assert changes(before, snapshot(holder, allow=[name])) == []


def test_long_values_are_told_apart():
    """Of a long text only the beginning is shown, but a change at its end is a change."""
    holder = Slotted("a" * 1000)
    before = snapshot(holder)
    holder.value = "a" * 999 + "b"
    (text,) = changes(before, snapshot(holder))
    assert len(text) < 250
