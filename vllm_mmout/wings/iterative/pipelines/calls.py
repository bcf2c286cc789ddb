"""A request's own run of a pipeline, which rests at each call of a network until it is given what that gives.

The run is a greenlet: the pipeline's code stays as it is, and what calls it stays in one thread.
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

_BESIDE: Final = ("text_encoder", "image_encoder", "vae", "vqvae", "movq", "safety_checker", "vocoder", "prompt")
"""How the names begin of networks that do not denoise."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a network."""

    name: str
    """Of the network in its pipeline; with a method: "vae.decode"."""
    function: Callable[..., Any]
    """The network's own."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def denoises(self) -> bool:
        """Whether the network is part of the steps."""
        return not self.name.startswith(_BESIDE)


class Task(greenlet.greenlet):  # type: ignore[misc]  # it has no types
    """One request's run, to be made, driven and closed in one thread, always within `torch.inference_mode`.

    Args:
        run: the request's call of its pipeline.
        generator: its source of noise, for schedulers that a pipeline gives none.

    """

    def __init__(self, run: Callable[[], Any], generator: torch.Generator | None = None) -> None:
        super().__init__(run)
        self.generator = generator
        self.call: Call | None = None
        """The call that it rests at; None once it has ended."""
        self.steps = 0
        """Steps of denoising that are done."""
        self.latents: torch.Tensor | None = None
        """What the last of them made, where it says so as it would be without noise."""
        self.result: Any = None
        self.error: BaseException | None = None
        """What the run failed with."""

    def go_on(self, *result: Any) -> None:
        """Run to the next call, or to the end; ``result`` is that of the call that it rests at, or an exception."""
        failed = isinstance(result[0], BaseException) if result else False
        self.call = None
        self.parent = greenlet.getcurrent()
        try:
            said = self.throw(*result) if failed else self.switch(*result)
        except BaseException as error:  # noqa: BLE001 - a pipeline's code: it is the request's error
            raise_interrupt(error)
            self.error = error
            return
        if self.dead:
            self.result = said
        else:
            self.call = said

    def close(self) -> None:
        """End a run that nobody waits for, so that its ``with`` blocks are left."""
        self.call = None
        if self.dead:
            return
        with suppress(Exception), torch.inference_mode():  # of another thread, whose end it waits for, it cannot be
            self.parent = greenlet.getcurrent()
            self.throw()


def intercept(components: Mapping[str, Any]) -> None:
    """Have the networks of a pipeline rest when a task calls them; all others get what the networks give, at once."""
    for name, component in components.items():
        if not isinstance(component, nn.Module):
            continue
        vars(component)["forward"] = _resting(name, component.forward)
        if callable(decode := getattr(component, "decode", None)):
            vars(component)["decode"] = _resting(f"{name}.decode", decode)


def _resting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # pipelines ask for the parameters of a network
    def rest(*args: Any, **kwargs: Any) -> Any:
        task = greenlet.getcurrent()
        if not isinstance(task, Task) or task.parent is None:
            return function(*args, **kwargs)
        return task.parent.switch(Call(name, function, args, kwargs))

    return rest


def counting(scheduler: Any) -> Any:
    """A request's own copy of a scheduler, which tells the task of each step and draws noise from its source."""
    kind: Any = type(scheduler)
    made = object.__new__(_counting(kind))
    vars(made).update(copy.deepcopy(vars(scheduler)))
    return made


@cache
def _counting(scheduler: type[Any]) -> type[Any]:
    """A scheduler's class of the same name that counts."""
    step: Any = scheduler.step

    @wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        task = greenlet.getcurrent()
        if not isinstance(task, Task):
            return step(self, *args, **kwargs)
        if "generator" in _parameters(step) and "generator" not in kwargs:
            kwargs["generator"] = task.generator
        made = step(self, *args, **kwargs)
        task.steps += 1
        task.latents = _latents(made)
        return made

    return type(scheduler.__name__, (scheduler,), {"step": counted, "__module__": scheduler.__module__})


def _latents(made: Any) -> torch.Tensor | None:
    """What a step gave: without noise, as some schedulers say it, else as it goes on."""
    said = tuple(made.values()) if isinstance(made, dict) else made if isinstance(made, tuple) else ()
    tensors = [one for one in said if isinstance(one, torch.Tensor)]
    fitting = [one for one in tensors[1:] if one.shape == tensors[0].shape]
    return next(iter((*fitting, *tensors)), None)


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    import inspect

    return frozenset(inspect.signature(function).parameters)
