"""Processors that keep all promises, in all the ways in which authors may write them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch

from vllm_mmout import OutputProcessor, TensorOutput
from vllm_mmout.errors import DecodeError


class Right(OutputProcessor):
    """Doubles what the model emits."""

    def reduce(self, output, params):
        return output * 2

    def decode(self, raw, params, state=None):
        return TensorOutput(np.array(raw.numpy()))


class RightDict(Right):
    """Takes and gives several tensors; refuses what is not finite."""

    def reduce(self, output, params):
        return {"sum": output["a"].flatten(1).sum(1, dtype=torch.float64), "b": output["b"]}

    def decode(self, raw, params, state=None):
        if not raw["sum"].isfinite():
            raise DecodeError("the sum is not finite; check the input's values")
        return {"sum": raw["sum"].item(), "b": [raw["b"].tolist(), ("x", None)]}


class RightLazyDecoder(Right):
    """Makes its decoder when it is first needed."""

    _decoder = None

    def decode(self, raw, params, state=None):
        if self._decoder is None:
            self._decoder = {"weights": np.full(1, 3.0)}
        return TensorOutput(raw.numpy() * self._decoder["weights"])


class RightLock(Right):
    """Shares a buffer between threads behind a lock, and clears it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._buffer = {}

    def decode(self, raw, params, state=None):
        with self._lock:
            self._buffer["raw"] = raw.numpy() * 1
            made = TensorOutput(self._buffer["raw"] + 1)
            self._buffer.clear()
        return made


@dataclass
class Boxes:
    boxes: np.ndarray
    score: float


class RightRecord(Right):
    def decode(self, raw, params, state=None):
        return Boxes(raw.numpy() * 1, float("nan"))
