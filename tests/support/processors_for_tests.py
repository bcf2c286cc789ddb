"""Output processors that misbehave, each in one way; importable in the frontend and in every worker."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
import warnings
from pathlib import Path

import torch

from vllm_mmout import OutputProcessor
from vllm_mmout.engine.wire import MAX_BYTES

RELEASE = threading.Event()
"""Lets decoders that wait for it go on."""


def digest(data):
    """Names a numpy array's bytes."""
    return hashlib.sha256(data.tobytes()).hexdigest()[:16]


class Echo(OutputProcessor):
    """Gives the raw tensor's shape, dtype and digest: enough to tell one input from another.

    No sum: the logits of land and water are opposite numbers, of every input they add up to 0.
    """

    def decode(self, raw, params, state=None):
        return (tuple(raw.shape), str(raw.dtype), digest(raw.contiguous().view(torch.uint8).numpy()))


class ReduceRaises(Echo):
    def reduce(self, output, params):
        raise ValueError("no reduce today")


class ReduceRaisesForBright(Echo):
    """Raises for the requests of a group of which one has a logit above 5: that one alone must fail."""

    def reduce(self, output, params):
        if (output > 5).any():
            raise ValueError("too bright")
        return output


class ReduceReturnsList(Echo):
    def reduce(self, output, params):
        return [1, 2, 3]


class ReduceReturnsOneRow(Echo):
    def reduce(self, output, params):
        return torch.zeros(output.shape[0] + 1, 2)


class ReduceReturnsSparse(Echo):
    def reduce(self, output, params):
        return output.flatten(1).to_sparse()


class ReduceReturnsQuantised(Echo):
    def reduce(self, output, params):
        with warnings.catch_warnings(action="ignore"):  # torch means to give such tensors up
            return torch.quantize_per_tensor(output, 0.1, 0, torch.qint8)


class ReduceReturnsTooMuch(Echo):
    """One byte more than may travel, without the memory for it."""

    def reduce(self, output, params):
        return torch.zeros((len(output), 1), dtype=torch.uint8).expand(-1, MAX_BYTES + 1)


class CountsForwards(OutputProcessor):
    """Gives how often the embedded network has run so far, counted in the worker."""

    forwards = 0

    def __init__(self):
        from vllm_mmout.models.embedded.water_index import WaterIndex

        forward = WaterIndex.forward
        if getattr(forward, "counted", False):
            return

        @functools.wraps(forward)
        def counting(*args, **kwargs):
            CountsForwards.forwards += 1
            return forward(*args, **kwargs)

        counting.counted = True
        WaterIndex.forward = counting

    def reduce(self, output, params):
        return torch.full((len(output),), CountsForwards.forwards)

    def decode(self, raw, params, state=None):
        return int(raw)


class StepSize(OutputProcessor):
    """A raster that says of each pixel how many requests were reduced together: those of one step that are alike."""

    modality = "raster"

    def reduce(self, output, params):
        return torch.full((len(output), 1, *output.shape[2:]), len(output), dtype=torch.uint8)

    def decode(self, raw, params, state=None):
        from vllm_mmout import RasterOutput

        return RasterOutput(raw.numpy(), nodata=0)


class ReduceSleeps(Echo):
    """Holds the engine's step for a while, so that a test can cancel in the middle of it."""

    def reduce(self, output, params):
        time.sleep(0.5)
        return output


def hold(name):
    """The file that a step makes when it is held, and the one that lets it go on."""
    folder = Path(os.environ["MMOUT_TEST_HOLDS"])
    return folder / f"{name}.started", folder / f"{name}.go"


class ReduceHolds(Echo):
    """Holds the engine's step, says so, and waits for leave; ``nodata`` names the request, alone in its group."""

    def reduce(self, output, params):
        started, go = hold(params.nodata)
        started.touch()
        deadline = time.monotonic() + 120
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return output


class ReduceRaisesItsName(Echo):
    """Raises what ``nodata`` names, so that one request's error cannot pass for another's."""

    def reduce(self, output, params):
        raise ValueError(f"no reduce for {params.nodata:g}")


class DecodeRaisesItsName(Echo):
    """The same in the frontend."""

    def decode(self, raw, params, state=None):
        raise LookupError(f"no decode for {params.nodata:g}")


class UnreadableError(Exception):
    """An author's exception with a fault of its own."""

    def __str__(self):
        raise ZeroDivisionError("no message today")


class ReduceRaisesUnreadable(Echo):
    def reduce(self, output, params):
        raise UnreadableError


class DecodeRaisesUnreadable(Echo):
    def decode(self, raw, params, state=None):
        raise UnreadableError


class AssembleRaisesUnreadable(Echo):
    def assemble(self, parts, params):
        raise UnreadableError


class DecodeRaises(Echo):
    def decode(self, raw, params, state=None):
        raise LookupError("no decode today")


class DecodeExits(Echo):
    def decode(self, raw, params, state=None):
        raise SystemExit(3)


class ReduceInterrupts(Echo):
    def reduce(self, output, params):
        raise KeyboardInterrupt("no user's")


class DecodeInterrupts(Echo):
    def decode(self, raw, params, state=None):
        raise KeyboardInterrupt("no user's")


class DecodeSleeps(Echo):
    def decode(self, raw, params, state=None):
        time.sleep(0.3)
        return super().decode(raw, params, state)


class DecodeWaits(Echo):
    def decode(self, raw, params, state=None):
        RELEASE.wait(30)
        return super().decode(raw, params, state)


class DecodeHangs(Echo):
    def decode(self, raw, params, state=None):
        time.sleep(8)
        return super().decode(raw, params, state)


class DecodeReturnsNone(Echo):
    def decode(self, raw, params, state=None):
        return None


ALL = {
    "segmentation": "segmentation",
    "tensor": "tensor",
    "image": "image",
} | {
    name: f"processors_for_tests:{name}"
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, OutputProcessor) and value is not OutputProcessor
}
"""Name -> path, for ``additional_config={"mmout": {"output_processor": ALL}}``."""
