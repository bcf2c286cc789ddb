"""An author's model compiled for a few batch sizes of its dummy input, before it serves.

By ``torch.compile`` itself: vLLM's own compilation takes a class written for it, whose one graph has any number of
tokens, and raises where a model breaks the graph. ``enforce_eager`` is about that one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from vllm_mmout.errors import ModelError, type_and_message
from vllm_mmout.log import logger
from vllm_mmout.models.author import run
from vllm_mmout.processors.raw import each, named

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

Inputs: TypeAlias = Mapping[str, torch.Tensor]
"""Tensors of one request, without axis 0."""
Dtypes: TypeAlias = Mapping[str, torch.dtype]

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""How far a compiled forward may be from eager, as a part of the largest absolute value that eager gives.

In 16 bits eager rounds after each operation, and a compiled forward does not: the difference is eager's own error.
"""
PAYS = 1.05
"""How many times as fast as eager a compiled forward must be to be kept, where that is asked."""
_LARGEST = 32
_ROUNDS = 5


class CompiledForward:
    """Runs a model in batches of the sizes that it was compiled for; what it was not compiled for runs as it was.

    Args:
        model: the author's; compiled is its ``forward``, or that of the module that its ``compiled_part`` is.
        dummy: the tensors of one request of the largest size, without axis 0.
        max_batch: requests of a step at most.

    Raises:
        ModelError: it does not compile, or gives other numbers; the model is then as it was.

    """

    def __init__(self, model: nn.Module, dummy: Inputs, max_batch: int) -> None:
        self.model = model
        self._part: Any = getattr(model, "compiled_part", model)
        self.sizes = tuple(1 << power for power in range(min(max_batch, _LARGEST).bit_length()))
        self._shapes = {name: tensor.shape for name, tensor in dummy.items()}
        self._dtypes = _dtypes(dummy) if self._part is model else None
        """None where a part of the model is compiled: what that gets, the rest makes of any dtype."""
        self._warned = False
        self._graphs = next(iter(dummy.values())).is_cuda
        self.speedup = self._compile(dummy)

    def run(self, alike: Sequence[Inputs]) -> Raw:
        """As `author.run`: what the model gives for requests that are alike, on axis 0."""
        with torch.compiler.set_stance("eager_on_recompile"):
            if not self._is_for(alike[0]):
                return run(self.model, alike)
            outputs: list[Raw] = []
            done = 0
            while done < len(alike):
                size, count = self._next(len(alike) - done)
                part = [*alike[done : done + count]]
                outputs.append(each(itemgetter(slice(count)), self._batch(part + part[-1:] * (size - count))))
                done += count
        return outputs[0] if len(outputs) == 1 else each(lambda *tensors: torch.cat(tensors), *outputs)

    def _is_for(self, tensors: Inputs) -> bool:
        """Whether the model was compiled for such tensors; a warning, once, where only their dtypes are others."""
        if {name: tensor.shape for name, tensor in tensors.items()} != self._shapes:
            return False
        if self._dtypes is None or (dtypes := _dtypes(tensors)) == self._dtypes:
            return True
        if not self._warned:
            self._warned = True
            what = f"{type(self.model).__name__} runs as it is for {_in_words(dtypes)}"
            remedy = "give it a property `compiled_part` that returns its module that gets floats"
            logger.warning("%s, it is compiled for %s; %s", what, _in_words(self._dtypes), remedy)
        return False

    def remove(self) -> None:
        """Give the model its own ``forward`` back."""
        vars(self._part).pop("forward", None)

    def _next(self, left: int) -> tuple[int, int]:
        """The size of the next batch and how many requests are in it: at most a quarter of a batch is padding."""
        for size in self.sizes:
            if left <= size:
                return (size, left) if 4 * left >= 3 * size else (size // 2, size // 2)
        return self.sizes[-1], self.sizes[-1]

    def _batch(self, alike: Sequence[Inputs]) -> Raw:
        if not self._graphs:
            return run(self.model, alike)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return each(torch.clone, run(self.model, alike))  # the next one writes over the graph's memory

    def _compile(self, dummy: Inputs) -> float:
        """Compile for each size, and hold it to eager; gives how many times as fast the largest one is."""
        batches = [[dummy] * size for size in self.sizes]
        eager = [run(self.model, batch) for batch in batches]
        before = self._seconds(batches[-1])
        mode = "reduce-overhead" if self._graphs else "default"
        try:
            self._part.forward = torch.compile(self._part.forward, dynamic=False, mode=mode)
            for batch, wanted in zip(batches, eager, strict=True):
                for _ in range(3):  # CUDA graphs are recorded in the second
                    _check_close(self._batch(batch), wanted)
            return before / self._seconds(batches[-1])
        except BaseException:
            self.remove()
            raise

    def _seconds(self, batch: Sequence[Inputs]) -> float:
        taken = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            self._batch(batch)
            if self._graphs:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)


def compiled(model: nn.Module, dummy: Inputs, max_batch: int, *, if_faster: bool) -> CompiledForward | None:
    """Compile a model; None, and a line in the log that says why, where it cannot be, or is to pay and does not."""
    name, started = type(model).__name__, time.perf_counter()
    try:
        forward = CompiledForward(model, dummy, max_batch)
    except Exception as error:  # noqa: BLE001 - of a compiler: all there is
        why, *_ = type_and_message(error.__cause__ or error).splitlines()
        logger.warning("%s runs as it is, it does not compile: %s", name, why)
        return None
    took = time.perf_counter() - started
    if if_faster and forward.speedup < PAYS:
        forward.remove()
        logger.info("%s runs as it is: compiled it was %.2f times as fast (%.0f s)", name, forward.speedup, took)
        return None
    sizes = ", ".join(map(str, forward.sizes))
    logger.info(
        "%s is compiled for batches of %s: %.2f times as fast as before (%.0f s)", name, sizes, forward.speedup, took
    )
    return forward


def _dtypes(tensors: Inputs) -> Dtypes:
    return {name: tensor.dtype for name, tensor in tensors.items()}


def _in_words(dtypes: Dtypes) -> str:
    return ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in dtypes.items())


def _check_close(given: Raw, eager: Raw) -> None:
    for one, wanted in zip(named(given).values(), named(eager).values(), strict=True):
        if one.dtype != wanted.dtype or one.shape != wanted.shape:
            raise ModelError(f"compiled it gives {one.dtype} {[*one.shape]}, not {wanted.dtype} {[*wanted.shape]}")
        if wanted.dtype not in TOLERANCE or not wanted.numel():
            continue
        largest = float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max())
        tolerance = TOLERANCE[wanted.dtype] * largest
        if not torch.allclose(one, wanted, rtol=0.0, atol=tolerance, equal_nan=True):
            raise ModelError(
                f"compiled it is {float((one - wanted).abs().max()):.3g} off, of {largest:.3g} at most; allowed is"
                f" {tolerance:.3g}"
            )
