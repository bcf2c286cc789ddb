"""Compile a model with ``torch.compile`` for a few batch sizes, before it serves requests.

It uses ``torch.compile`` directly. vLLM's own compilation needs a class written for it, with one graph for any number
of tokens, and raises if the model breaks the graph. ``enforce_eager`` controls only vLLM's compilation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
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
"""Input tensors of a model, by name of the keyword argument of the model's ``forward``."""
Dtypes: TypeAlias = Mapping[str, torch.dtype]

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Maximum difference between the outputs of compiled and eager mode, for each dtype.

The difference is a fraction of the largest absolute value in the eager output. Only rounding may differ: eager mode
rounds to a 16-bit dtype after each operation, and compiled code does not.
"""
MIN_SPEEDUP = 1.05
"""Minimum speedup of a compiled model over eager mode. If compilation is optional and the speedup is lower, the model
runs uncompiled."""
_WAYS: tuple[Mapping[str, Any], ...] = ({"mode": "default"},)
_WAYS_ON_CUDA: tuple[Mapping[str, Any], ...] = ({"backend": "cudagraphs"}, {"mode": "reduce-overhead"})
"""Different arguments of ``torch.compile`` to try on CUDA. The fastest compiled function is used.

"cudagraphs" makes a CUDA graph of eager mode's kernels. "reduce-overhead" makes a CUDA graph of Inductor's kernels.

On an H200, Inductor's kernels took 1.5 times as long as eager mode for a ViT-B/16 in bfloat16. A graph of
eager mode's kernels saves the time to launch them. It copies the weights at each run, which takes some percent of a
forward pass.
"""
_LARGEST = 32
_ROUNDS = 5


class CompiledForward:
    """Compiled model for a few batch sizes of one input shape. Inputs of other shapes or dtypes run uncompiled.

    Args:
        model: the author's model; its ``forward`` is compiled, or that of its submodule ``compiled_part``.
        dummy: the tensors of one request of the largest size, without axis 0.
        max_batch: largest number of requests in a step.

    Raises:
        ModelError: the model does not compile, or gives other numbers; the model is then unchanged.

    """

    def __init__(self, model: nn.Module, dummy: Inputs, max_batch: int) -> None:
        self.model = model
        self._part: Any = getattr(model, "compiled_part", model)
        largest = min(max_batch, _LARGEST)
        self.sizes = (*(1 << power for power in range(6) if 1 << power < largest), largest)
        self._shapes = {name: tensor.shape for name, tensor in dummy.items()}
        self._dtypes = _dtypes(dummy) if self._part is model else None
        """Input dtypes that the model was compiled for. Batches with other dtypes run uncompiled. None if only a
        submodule is compiled.

        Batches of any dtype run compiled if only a submodule is compiled. The dtypes of the submodule's inputs do not
        depend on the dtypes of the model's inputs.
        """
        self._warned = False
        self._graphs = next(iter(dummy.values())).is_cuda
        self.speedup = self._compile(dummy)

    def run(self, batch: Inputs) -> Raw:
        """Run the model on a batch of inputs of equal shape, and return its output.

        The compiled model is used if it was compiled for the batch's shapes and dtypes, else the uncompiled model.
        ``batch`` holds a tensor [inputs, ...] for each keyword of ``forward``.
        """
        total = len(next(iter(batch.values())))
        with torch.compiler.set_stance("eager_on_recompile"):
            if not self._was_compiled_for(batch):
                return run(self.model, batch)
            outputs: list[Raw] = []
            done = 0
            while done < total:
                size, count = self._next_batch(total - done)
                part = {name: _padded(tensor[done : done + count], size) for name, tensor in batch.items()}
                outputs.append(each(itemgetter(slice(count)), self._batch(part)))
                done += count
        return outputs[0] if len(outputs) == 1 else each(lambda *tensors: torch.cat(tensors), *outputs)

    def _was_compiled_for(self, batch: Inputs) -> bool:
        """Return whether the model was compiled for these shapes and dtypes. Warn once if only the dtypes differ."""
        if {name: tensor.shape[1:] for name, tensor in batch.items()} != self._shapes:
            return False
        if self._dtypes is None or (dtypes := _dtypes(batch)) == self._dtypes:
            return True
        if not self._warned:
            self._warned = True
            subject = f"{type(self.model).__name__} runs as it is for {_in_words(dtypes)}"
            remedy = "give it a property `compiled_part` that returns its submodule with floating-point inputs"
            logger.warning("%s, it is compiled for %s; %s", subject, _in_words(self._dtypes), remedy)
        return False

    def remove(self) -> None:
        """Remove the compiled ``forward`` from the model, which then runs uncompiled."""
        vars(self._part).pop("forward", None)

    def _next_batch(self, remaining: int) -> tuple[int, int]:
        """Choose the size of the next batch to run, among the batch sizes that the model was compiled for.

        Return the size, and how many of the ``remaining`` requests to run in the batch. The rest of the batch is
        padding.
        """
        for smaller, size in zip((1, *self.sizes), self.sizes, strict=False):
            if remaining <= size:
                return (size, remaining) if 4 * remaining >= 3 * size else (smaller, smaller)
        return self.sizes[-1], self.sizes[-1]

    def _batch(self, batch: Inputs) -> Raw:
        if not self._graphs:
            return run(self.model, batch)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return each(torch.clone, run(self.model, batch))  # the next batch overwrites the memory of a CUDA graph

    def _compile(self, dummy: Inputs) -> float:
        """Compile the model for each batch size, and compare it with eager mode. Return the largest batch's speedup.

        The largest batch is compiled in several ways, and the other batches in the fastest of them.
        """
        batches = [{name: _repeated(tensor, size) for name, tensor in dummy.items()} for size in self.sizes]
        eager = [run(self.model, batch) for batch in batches]
        try:
            speedup, self._part.forward = self._fastest(self._part.forward, batches[-1], eager[-1])
            for batch, expected in zip(batches[:-1], eager, strict=False):
                self._check(batch, expected)
        except BaseException:
            self.remove()
            raise
        return speedup

    def _fastest(self, plain_forward: Any, batch: Inputs, expected: Raw) -> tuple[float, Any]:
        """Compile ``plain_forward`` with different ``torch.compile`` options, and return the fastest compiled function.

        The result is (speedup over eager mode, function). If every compilation fails, raise the last error.
        """
        found: list[tuple[float, Any]] = []
        failure: Exception = ModelError("there is no way to compile it")
        for way in _WAYS_ON_CUDA if self._graphs else _WAYS:
            self._part.forward = torch.compile(plain_forward, dynamic=False, **way)
            try:
                self._check(batch, expected)
                found.append((self._speedup(batch), self._part.forward))
            except Exception as error:  # noqa: BLE001 - a compiler may raise anything
                failure = error
        if not found:
            raise failure
        return max(found, key=itemgetter(0))

    def _check(self, batch: Inputs, expected: Raw) -> None:
        """Run the compiled model. Raise ModelError unless its output is close to ``expected``, eager mode's output."""
        for _ in range(3):  # the second run records CUDA graphs
            _check_close(self._batch(batch), expected)

    def _speedup(self, batch: Inputs) -> float:
        """Return how many times faster the compiled model is than eager mode, as the median of several rounds."""
        ratios = []
        for _ in range(_ROUNDS):
            with torch.compiler.set_stance("force_eager"):
                eager_s = self._seconds(batch)
            ratios.append(eager_s / self._seconds(batch))
        return statistics.median(ratios)

    def _seconds(self, batch: Inputs) -> float:
        started = time.perf_counter()
        self._batch(batch)
        if self._graphs:
            torch.cuda.synchronize()
        return time.perf_counter() - started


def compile_model(model: nn.Module, dummy: Inputs, max_batch: int, *, if_faster: bool) -> CompiledForward | None:
    """Compile a model for inputs like ``dummy``. Return None, and log the reason, if the model stays uncompiled.

    This is the case if the compilation fails, or if ``if_faster`` is True and the speedup is below `MIN_SPEEDUP`.
    """
    name, started = type(model).__name__, time.perf_counter()
    try:
        forward = CompiledForward(model, dummy, max_batch)
    except Exception as error:  # noqa: BLE001 - a compiler may raise anything
        reason, *_ = type_and_message(error.__cause__ or error).splitlines()
        logger.warning("%s runs as it is, it does not compile: %s", name, reason)
        return None
    seconds = time.perf_counter() - started
    if if_faster and forward.speedup < MIN_SPEEDUP:
        forward.remove()
        logger.info("%s runs as it is: compiled it was %.2f times as fast (%.0f s)", name, forward.speedup, seconds)
        return None
    sizes = ", ".join(map(str, forward.sizes))
    logger.info(
        "%s is compiled for batches of %s: %.2f times as fast as before (%.0f s)", name, sizes, forward.speedup, seconds
    )
    return forward


def _repeated(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return torch.stack([tensor] * count)


def _padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Pad a tensor to ``size`` entries along axis 0 by repeating its last entry."""
    missing = size - len(tensor)
    return torch.cat([tensor, *[tensor[-1:]] * missing]) if missing else tensor


def _dtypes(tensors: Inputs) -> Dtypes:
    return {name: tensor.dtype for name, tensor in tensors.items()}


def _in_words(dtypes: Dtypes) -> str:
    return ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in dtypes.items())


def _check_close(compiled_output: Raw, eager_output: Raw) -> None:
    for actual, expected in zip(named(compiled_output).values(), named(eager_output).values(), strict=True):
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            raise ModelError(
                f"compiled it gives {actual.dtype} {[*actual.shape]}, not {expected.dtype} {[*expected.shape]}"
            )
        if expected.dtype not in TOLERANCE or not expected.numel():
            continue
        largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
        tolerance = TOLERANCE[expected.dtype] * largest
        if not torch.allclose(actual, expected, rtol=0.0, atol=tolerance, equal_nan=True):
            raise ModelError(
                f"compiled it is {float((actual - expected).abs().max()):.3g} off, of {largest:.3g} at most; allowed is"
                f" {tolerance:.3g}"
            )
