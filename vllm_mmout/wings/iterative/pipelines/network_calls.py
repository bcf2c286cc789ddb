"""Run pipelines in greenlets that pause at each network call, so that the calls of several requests can be batched.

Greenlets need no change of the pipeline's code, and keep all pipelines in one thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final

import greenlet
import torch
from torch import nn

from vllm_mmout.errors import raise_interrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_DENOISING: Final = ("text_encoder", "image_encoder", "vae", "vqvae", "movq", "safety_checker", "vocoder", "prompt")
"""Name prefixes of networks that do not denoise. They run only before or after the denoising steps."""


@dataclass(frozen=True, slots=True)
class NetworkCall:
    """Network call that a pipeline made, intercepted so that it can run in a batch with calls of other requests."""

    name: str
    """Name of the called network in its pipeline, such as "unet". For a call of the network's method ``decode``, the
    name ends in ".decode", as in "vae.decode"."""
    function: Callable[..., Any]
    """Original ``forward`` or ``decode`` method of the network. It is called with ``args`` and ``kwargs``."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def denoises(self) -> bool:
        """Whether the network takes part in denoising, unlike text encoders and the VAE."""
        return not self.name.startswith(_NOT_DENOISING)


class Task(greenlet.greenlet):  # type: ignore[misc]  # greenlet has no type hints
    """Greenlet that runs the diffusers pipeline of one request, and pauses before each forward of a neural network.

    All its methods must be called from the same thread.

    Args:
        run: a call of the request's pipeline.
        generator: the request's random generator, used where a pipeline gives its scheduler no generator.

    """

    def __init__(self, run: Callable[[], Any], generator: torch.Generator | None = None) -> None:
        super().__init__(run)
        self.generator = generator
        self.call: NetworkCall | None = None
        """Pending network call: the pipeline is paused until its result arrives. None if the pipeline is running or has
        ended."""
        self.steps = 0
        """Number of denoising steps that the pipeline has finished."""
        self.latents: torch.Tensor | None = None
        """Latents from which a preview is decoded, or None before the first denoising step is finished.

        If the scheduler returns an estimate without noise, this estimate is used.
        """
        self.result: Any = None
        self.error: BaseException | None = None
        """Exception that ended the pipeline, or None."""

    def resume(self, *result: Any) -> None:
        """Resume the pipeline until it calls a network again, or ends.

        ``result`` is the result or the exception of the network call at which the run paused.
        """
        failed = isinstance(result[0], BaseException) if result else False
        self.call = None
        self.parent = greenlet.getcurrent()
        try:
            value = self.throw(*result) if failed else self.switch(*result)
        except BaseException as error:  # noqa: BLE001 - a pipeline's exceptions are errors of its request
            raise_interrupt(error)
            self.error = error
            return
        if self.dead:
            self.result = value
        else:
            self.call = value

    def close(self) -> None:
        """Abort the pipeline if it has not ended. GreenletExit is raised in the pipeline's paused code."""
        self.call = None
        if self.dead:
            return
        # Fails for a run of another thread, which only that thread can end.
        with suppress(Exception), torch.inference_mode():
            self.parent = greenlet.getcurrent()
            self.throw()


def intercept(components: Mapping[str, Any]) -> None:
    """Wrap a pipeline's networks so that a call from a `Task` (greenlet) pauses the task. Other calls run at once."""
    for name, component in components.items():
        if not isinstance(component, nn.Module):
            continue
        vars(component)["forward"] = _resting(name, component.forward)
        if callable(decode := getattr(component, "decode", None)):
            vars(component)["decode"] = _resting(f"{name}.decode", decode)


def _resting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # pipelines inspect the parameters of a network
    def rest(*args: Any, **kwargs: Any) -> Any:
        task = greenlet.getcurrent()
        if not isinstance(task, Task) or task.parent is None:
            return function(*args, **kwargs)
        return task.parent.switch(NetworkCall(name, function, args, kwargs))

    return rest


def counting(scheduler: Any) -> Any:
    """Return a copy of a diffusers scheduler for one request, which counts the request's denoising steps."""
    kind: Any = type(scheduler)
    copied = object.__new__(_counting(kind))
    vars(copied).update(copy.deepcopy(vars(scheduler)))
    return copied


@cache
def _counting(scheduler: type[Any]) -> type[Any]:
    """Return a subclass of a diffusers scheduler class whose ``step`` counts the steps of the current request."""
    step: Any = scheduler.step

    @wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        task = greenlet.getcurrent()
        if not isinstance(task, Task):
            return step(self, *args, **kwargs)
        if "generator" in _parameters(step) and "generator" not in kwargs:
            kwargs["generator"] = task.generator
        output = step(self, *args, **kwargs)
        task.steps += 1
        task.latents = _latents(output)
        return output

    return type(scheduler.__name__, (scheduler,), {"step": counted, "__module__": scheduler.__module__})


def _latents(output: Any) -> torch.Tensor | None:
    """Return the latents in the output of a scheduler step, or None if it holds no tensor.

    The scheduler's estimate without noise is preferred. Without it, return the latents for the next step.
    """
    values = tuple(output.values()) if isinstance(output, dict) else output if isinstance(output, tuple) else ()
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    estimates = [tensor for tensor in tensors[1:] if tensor.shape == tensors[0].shape]
    return next(iter((*estimates, *tensors)), None)


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    import inspect

    return frozenset(inspect.signature(function).parameters)
