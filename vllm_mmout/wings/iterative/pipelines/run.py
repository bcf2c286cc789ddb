"""Requests of a pipeline on their way: each advances by a step, and all calls of their networks are run together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_mmout.errors import InputError, MMOutError, RequestError, message_of, type_and_message
from vllm_mmout.wings.iterative.pipelines.calls import Call, Task, counting, intercept
from vllm_mmout.wings.iterative.pipelines.merging import Together
from vllm_mmout.wings.iterative.pipelines.previews import preview_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSALS: Final = (ValueError, TypeError, IndexError, KeyError)
"""What pipelines raise of arguments that they cannot take."""
TILED_ABOVE: Final = 1536 * 1536
"""Pixels of a picture that is decoded in tiles."""


_DEVICE: Final = "mmout_device"


@cache
def _placed(pipeline: type[Any]) -> type[Any]:
    """A pipeline's class whose objects know their device; diffusers looks through all modules each time it asks."""
    device = property(lambda own: vars(own)[_DEVICE])
    return type(pipeline.__name__, (pipeline,), {"_execution_device": device, "__module__": pipeline.__module__})


class Request:
    """One request's run; one that is dropped ends."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __del__(self) -> None:
        self.task.close()


@dataclass(slots=True)
class Runs:
    """The requests of one pipeline, which they share with its networks; each has its own scheduler.

    Args:
        pipeline: one of diffusers. Its networks are changed so that requests rest when they call them.
        tiled_above: pixels of a picture from which on the pipeline's own tiles are used to decode it.

    """

    pipeline: Any
    tiled_above: int = TILED_ABOVE
    _together: Together = field(init=False)
    _device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self._device = getattr(self.pipeline, "_execution_device", self.pipeline.device)
        self.pipeline.set_progress_bar_config(disable=True)
        intercept(self.pipeline.components)
        self._together = Together(self._run)

    def begin(self, arguments: Mapping[str, Any]) -> Request:
        """Run a request up to its first step; InputError: the pipeline refuses it. RequestError: it failed."""
        own = self._own_copy()
        for name, component in self.pipeline.components.items():
            if hasattr(component, "set_timesteps"):
                vars(own)[name] = counting(component)
        task = Task(lambda: own(**arguments), arguments.get("generator"))
        request = Request(task)
        with torch.inference_mode():
            task.go_on()
            self._advance([task], lambda task: task.call is not None and task.call.denoises)
        if task.error is not None:
            raise self._error_of(task, begins=True)
        return request

    def _own_copy(self) -> Any:
        """A request's own copy of the pipeline, with the same components."""
        kind: Any = type(self.pipeline)
        own = object.__new__(_placed(kind))
        vars(own).update({**vars(self.pipeline), _DEVICE: self._device})
        return own

    def step(self, requests: Sequence[Request]) -> list[Request | MMOutError]:
        """Take each request one step further; an error is that of its request."""
        tasks = [request.task for request in requests]
        wanted = {id(task): task.steps + 1 for task in tasks}
        with torch.inference_mode():
            self._advance(tasks, lambda task: task.steps >= wanted[id(task)])
        return [self._error_of(one.task) if one.task.error is not None else one for one in requests]

    def finish(self, requests: Sequence[Request]) -> list[Any]:
        """What the pipeline gives for each request, or its error; what is left of their steps is done."""
        tasks = [request.task for request in requests]
        with torch.inference_mode():
            self._advance(tasks, lambda _: False)
        return [self._error_of(task) if task.error is not None else task.result for task in tasks]

    def preview(self, requests: Sequence[Request]) -> list[Any]:
        """What each request looks like now, or an error where nobody can tell."""
        name = type(self.pipeline).__name__
        unknown = RequestError(f"{name} keeps its latents in a way that has no previews; leave out partial_images")
        with torch.inference_mode():
            made = [preview_of(self.pipeline, one.task.latents) for one in requests]
        return [unknown if picture is None else picture for picture in made]

    def _advance(self, tasks: Sequence[Task], rests: Callable[[Task], bool]) -> None:
        """Run tasks until each is where it is to rest, or has ended."""
        while waiting := [task for task in tasks if task.call is not None and not rests(task)]:
            results = self._together([task.call for task in waiting if task.call is not None])
            for task, result in zip(waiting, results, strict=True):
                task.go_on(result)

    def _run(self, call: Call) -> Any:
        with self._tiled(call):
            return call.function(*call.args, **call.kwargs)

    @contextmanager
    def _tiled(self, call: Call) -> Iterator[None]:
        """Decode large pictures in the tiles that the pipeline's own decoder has."""
        network = getattr(self.pipeline, call.name.removesuffix(".decode"))
        given = (*call.args, *call.kwargs.values())
        latents = next((value for value in given if isinstance(value, torch.Tensor)), None)
        may = call.name.endswith(".decode") and getattr(network, "use_tiling", None) is False
        if latents is None or not may:
            yield
            return
        scale = getattr(self.pipeline, "vae_scale_factor", getattr(self.pipeline, "vae_scale_factor_spatial", 8))
        network.use_tiling = latents.shape[-1] * latents.shape[-2] * scale**2 > self.tiled_above
        try:
            yield
        finally:
            network.use_tiling = False

    def _error_of(self, task: Task, *, begins: bool = False) -> MMOutError:
        """A failure as that of its request; without its frames, which hold all that was computed."""
        error = task.error
        if isinstance(error, MMOutError):
            return error
        name = type(self.pipeline).__name__
        if begins and isinstance(error, _REFUSALS):
            return InputError(f"{name} refuses the request: {message_of(error)}; send what it takes")
        said = type_and_message(error) if error is not None else "it ended"
        return RequestError(f"{name} failed: {said}; send another request, or correct the pipeline's folder")
