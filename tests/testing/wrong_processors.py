"""Processors that break one promise each, as authors do by mistake."""

from __future__ import annotations

import functools
import random
import threading
import time
import types
from collections import Counter
from typing import ClassVar

import numpy as np
import torch
from right_processors import Right

from vllm_mmout import TensorOutput
from vllm_mmout.errors import DecodeError, ReduceError
from vllm_mmout.processors import Part

CALLS: list[int] = []
HELD = threading.Event()
"""Lets calls that hang go."""


class KeepsParams(Right):
    last = None

    def reduce(self, output, params):
        self.last = (output.shape, params)
        return output


class KeepsOnItsClass(Right):
    seen: ClassVar[dict[str, int]] = {}

    def decode(self, raw, params, state=None):
        self.seen["n"] = self.seen.get("n", 0) + 1
        return super().decode(raw, params)


class KeepsDeep(Right):
    def __init__(self):
        self.parts = [Counter(), {"inner": (random.Random(3),)}]  # noqa: S311 - no secret

    def decode(self, raw, params, state=None):
        self.parts[1]["inner"][0].random()
        return super().decode(raw, params)


class KeepsInItsModule(Right):
    def decode(self, raw, params, state=None):
        CALLS.append(len(raw))
        return super().decode(raw, params)


class KeepsInADefault(Right):
    def decode(self, raw, params, state=None, seen=[]):  # noqa: B006 - the mistake
        seen.append(raw)
        return super().decode(raw, params)


class KeepsInACache(Right):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 - the mistake
    def _known(self, raw):
        return raw.numpy() * 1

    def decode(self, raw, params, state=None):
        return TensorOutput(self._known(raw))


class Random(Right):
    def decode(self, raw, params, state=None):
        return TensorOutput(raw.numpy() + random.random())  # noqa: S311 - no secret


class RandomReduce(Right):
    def reduce(self, output, params):
        return output + torch.rand(1).to(output)


class Numbered(Right):
    """Every instance is another one."""

    made = 0

    def __init__(self):
        Numbered.made += 1
        self.number = Numbered.made

    def decode(self, raw, params, state=None):
        return (self.number, super().decode(raw, params))


class GlobalCounter(Right):
    def decode(self, raw, params, state=None):
        CALLS.append(0)
        return {"number": len(CALLS), "value": raw.numpy() * 1}


class SoftmaxOverRequests(Right):
    def reduce(self, output, params):
        return output.softmax(0)


class WeighsByPlace(Right):
    def reduce(self, output, params):
        places = torch.arange(len(output), dtype=output.dtype)
        return output + places.reshape(-1, *[1] * (output.dim() - 1))


class GivesUpTogether(Right):
    """One bad value clears the whole group."""

    def reduce(self, output, params):
        return output * 2 if output.isfinite().all() else torch.zeros_like(output)


class RemembersTheFirst(Right):
    """Scales all by what came first."""

    scale = None

    def decode(self, raw, params, state=None):
        if self.scale is None:
            self.scale = raw.numpy().sum()
        return TensorOutput(raw.numpy() * self.scale)


class RemembersTheFirstGroup(Right):
    scale = None

    def reduce(self, output, params):
        if self.scale is None:
            self.scale = output.sum()
        return output * self.scale


class ReadsMemory(Right):
    """Takes it that what a model emits is contiguous."""

    def reduce(self, output, params):
        return torch.as_strided(output, output.shape, torch.empty(output.shape).stride()) * 1


class WritesItsInput(Right):
    def reduce(self, output, params):
        return output.mul_(2)


class WritesRaw(Right):
    def decode(self, raw, params, state=None):
        array = raw.numpy()
        array += 1
        return TensorOutput(array.copy())


class SharedScratch(Right):
    """One buffer for all threads, to save an allocation."""

    scratch = None

    def decode(self, raw, params, state=None):
        self.scratch = raw.numpy() * 1
        self.scratch += 1
        return TensorOutput(self.scratch.copy())


def _through_scratch(processor, raw):
    processor.scratch = raw.numpy() * 1
    time.sleep(0.002)
    return TensorOutput(processor.scratch * 1)


class SharedScratchElsewhere(Right):
    """The same in code of another package, at whose lines nobody is stopped."""

    scratch = None
    _elsewhere = staticmethod(types.FunctionType(_through_scratch.__code__, {**globals(), "__name__": "elsewhere"}))

    def decode(self, raw, params, state=None):
        return self._elsewhere(self, raw)


class ReturnsList(Right):
    def reduce(self, output, params):
        return [output]


class ReturnsNumpy(Right):
    def reduce(self, output, params):
        return output.numpy().astype(np.float64)


class LosesTheRequests(Right):
    def reduce(self, output, params):
        return output.sum(0)


class ReturnsScalar(Right):
    def reduce(self, output, params):
        return output.sum()


class ReturnsSparse(Right):
    def reduce(self, output, params):
        return output.flatten(1).to_sparse()


class ReturnsOddDtype(Right):
    def reduce(self, output, params):
        return output.to(torch.float8_e4m3fnuz)


class ReturnsNothing(Right):
    def reduce(self, output, params):
        return {}


class ReturnsNumberedDict(Right):
    def reduce(self, output, params):
        return {0: output}


class Raises(Right):
    def decode(self, raw, params, state=None):
        raise LookupError("no decode today")


class DecodesToNone(Right):
    def decode(self, raw, params, state=None):
        return None


class RaisesForNan(Right):
    def decode(self, raw, params, state=None):
        return {"int": int(raw.flatten()[0])} if raw.numel() else {}


class RaisesForEmpty(Right):
    def decode(self, raw, params, state=None):
        return {"largest": raw.numpy().max()}


class HangsForNan(Right):
    def decode(self, raw, params, state=None):
        while raw.isnan().any() and not HELD.is_set():
            time.sleep(0.01)
        return super().decode(raw, params)


class AssemblesAList(Right):
    def assemble(self, parts, params):
        return [part.output for part in parts]


class AssemblesParts(Right):
    def assemble(self, parts, params):
        (part,) = parts
        assert isinstance(part, Part)
        return TensorOutput(part.output.array + 1)


class Opaque:
    """Says nothing of what it holds."""

    def __init__(self, value):
        self.value = value


class ReturnsOpaque(Right):
    def decode(self, raw, params, state=None):
        return Opaque(raw.tolist())


class RefusesInTurns(Right):
    turn = 0

    def decode(self, raw, params, state=None):
        self.turn += 1
        raise DecodeError("odd") if self.turn % 2 else ReduceError("even")


class Refuses(Right):
    def decode(self, raw, params, state=None):
        raise DecodeError("not for me")
