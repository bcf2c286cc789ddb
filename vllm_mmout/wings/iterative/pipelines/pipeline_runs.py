"""Run several requests of one diffusers pipeline step by step, and batch their network calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_mmout.errors import InputError, MMOutError, RequestError, message_of, type_and_message
from vllm_mmout.wings.iterative.pipelines.call_batching import CallBatcher
from vllm_mmout.wings.iterative.pipelines.network_calls import NetworkCall, Task, counting, intercept
from vllm_mmout.wings.iterative.pipelines.previews import preview_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSALS: Final = (ValueError, TypeError, IndexError, KeyError)
"""Exceptions that pipelines raise for invalid arguments. They are reported to the client as `InputError`."""
TILED_ABOVE: Final = 1536 * 1536
"""Number of pixels above which a result is decoded in tiles to save memory."""


_DEVICE: Final = "mmout_device"


@cache
def _with_stored_device(pipeline: type[Any]) -> type[Any]:
    """Return a subclass of a pipeline class whose instances store their device, so that reading the device is fast.

    Otherwise, diffusers searches all modules of the pipeline whenever its code reads the device.
    """
    device = property(lambda own: vars(own)[_DEVICE])
    return type(pipeline.__name__, (pipeline,), {"_execution_device": device, "__module__": pipeline.__module__})


class PipelineRun:
    """One request's run of a pipeline. Deleting the object aborts the run."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __del__(self) -> None:
        self.task.close()


@dataclass(slots=True)
class Runs:
    """All running requests of one diffusers pipeline. They share its networks, but each has its own scheduler.

    Args:
        pipeline: a pipeline of diffusers. Its networks are changed so that a request pauses when it calls them.
        tiled_above: number of pixels above which a picture is decoded in the pipeline's own tiles.

    """

    pipeline: Any
    tiled_above: int = TILED_ABOVE
    _together: CallBatcher = field(init=False)
    _device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self._device = getattr(self.pipeline, "_execution_device", self.pipeline.device)
        self.pipeline.set_progress_bar_config(disable=True)
        intercept(self.pipeline.components)
        self._together = CallBatcher(self._run)

    def begin(self, arguments: Mapping[str, Any]) -> PipelineRun:
        """Start a request and run it to its first denoising step. Raise InputError or RequestError if it fails."""
        own = self._own_copy()
        for name, component in self.pipeline.components.items():
            if hasattr(component, "set_timesteps"):
                vars(own)[name] = counting(component)
        task = Task(lambda: own(**arguments), arguments.get("generator"))
        request = PipelineRun(task)
        with torch.inference_mode():
            task.resume()
            self._advance([task], lambda task: task.call is not None and task.call.denoises)
        if task.error is not None:
            raise self._error_of(task, is_starting=True)
        return request

    def _own_copy(self) -> Any:
        """Return a shallow copy of the pipeline for one request. It shares the pipeline's components."""
        kind: Any = type(self.pipeline)
        own = object.__new__(_with_stored_device(kind))
        vars(own).update({**vars(self.pipeline), _DEVICE: self._device})
        return own

    def step(self, requests: Sequence[PipelineRun]) -> list[PipelineRun | MMOutError]:
        """Run one denoising step of each request. Return the requests, with an MMOutError for each failed request."""
        tasks = [request.task for request in requests]
        targets = {id(task): task.steps + 1 for task in tasks}
        with torch.inference_mode():
            self._advance(tasks, lambda task: task.steps >= targets[id(task)])
        return [self._error_of(request.task) if request.task.error is not None else request for request in requests]

    def finish(self, requests: Sequence[PipelineRun]) -> list[Any]:
        """Run the pipeline of each request to its end. Return each pipeline's output, or the error that ended it."""
        tasks = [request.task for request in requests]
        with torch.inference_mode():
            self._advance(tasks, lambda _: False)
        return [self._error_of(task) if task.error is not None else task.result for task in tasks]

    def preview(self, requests: Sequence[PipelineRun]) -> list[Any]:
        """Return a preview picture of each request, or an error if its latents cannot be decoded."""
        name = type(self.pipeline).__name__
        no_preview = RequestError(f"{name} keeps its latents in a form that cannot be shown; leave out partial_images")
        with torch.inference_mode():
            pictures = [preview_of(self.pipeline, request.task.latents) for request in requests]
        return [no_preview if picture is None else picture for picture in pictures]

    def _advance(self, tasks: Sequence[Task], is_done: Callable[[Task], bool]) -> None:
        """Advance each task until it ends or ``is_done(task)`` is true. Network calls of the tasks run in batches."""
        while waiting := [task for task in tasks if task.call is not None and not is_done(task)]:
            results = self._together([task.call for task in waiting if task.call is not None])
            for task, result in zip(waiting, results, strict=True):
                task.resume(result)

    def _run(self, call: NetworkCall) -> Any:
        with self._tiled(call):
            return call.function(*call.args, **call.kwargs)

    @contextmanager
    def _tiled(self, call: NetworkCall) -> Iterator[None]:
        """Make the decoder work in tiles during the ``with`` block if the picture is large. Tiles save memory."""
        network = getattr(self.pipeline, call.name.removesuffix(".decode"))
        arguments = (*call.args, *call.kwargs.values())
        latents = next((value for value in arguments if isinstance(value, torch.Tensor)), None)
        can_tile = call.name.endswith(".decode") and getattr(network, "use_tiling", None) is False
        if latents is None or not can_tile:
            yield
            return
        scale = getattr(self.pipeline, "vae_scale_factor", getattr(self.pipeline, "vae_scale_factor_spatial", 8))
        network.use_tiling = latents.shape[-1] * latents.shape[-2] * scale**2 > self.tiled_above
        try:
            yield
        finally:
            network.use_tiling = False

    def _error_of(self, task: Task, *, is_starting: bool = False) -> MMOutError:
        """Return an MMOutError for a failed task. An exception of another type is converted to a new MMOutError.

        The new error has no traceback, which would keep tensors in memory.
        """
        error = task.error
        if isinstance(error, MMOutError):
            return error
        name = type(self.pipeline).__name__
        if is_starting and isinstance(error, _REFUSALS):
            return InputError(f"{name} refuses the request: {message_of(error)}; send what it takes")
        reason = type_and_message(error) if error is not None else "it ended"
        return RequestError(f"{name} failed: {reason}; send another request, or correct the pipeline's folder")
