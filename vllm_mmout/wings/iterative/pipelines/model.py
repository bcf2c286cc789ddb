"""Run a diffusers pipeline as a model that vLLM schedules one denoising step at a time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from vllm_mmout.errors import MMOutError, message_of
from vllm_mmout.params import OutputParams
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.iterative.pipelines.arguments import STEPS, arguments_of, default_of, settable_arguments
from vllm_mmout.wings.iterative.pipelines.loading import KEY, class_of_folder, load
from vllm_mmout.wings.iterative.pipelines.mapper import mapper_of
from vllm_mmout.wings.iterative.pipelines.pipeline_runs import TILED_ABOVE, PipelineRun, Runs
from vllm_mmout.wings.iterative.pipelines.results import result_of

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

_PICTURE_PROCESSORS: Final = frozenset({"image", "video"})
"""Names of the output processors that make pictures. Other processors make rasters of measured values."""


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class PipelineModel(nn.Module):
    """Model that runs a diffusers pipeline step by step. Batching requests does not change their results."""

    loads_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        entry = config[KEY]
        pipeline = load(entry["folder"], torch.get_default_dtype(), torch.get_default_device())
        self._runs = Runs(pipeline, entry.get("tiled_above", TILED_ABOVE))
        table = config.get("mmout")
        self._coloured = isinstance(table, Mapping) and table.get("output_processor", "image") in _PICTURE_PROCESSORS

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the pipeline's arguments that a request can set."""
        return settable_arguments(class_of_folder(config[KEY]["folder"]))

    @staticmethod
    def count_steps(config: Mapping[str, Any], tensors: Mapping[str, Any], params: OutputParams) -> int:
        """Return the number of denoising steps that a request runs. A ``strength`` below 1 reduces the number.

        Some schedulers run one more step, which `finish` does.
        """
        pipeline = class_of_folder(config[KEY]["folder"])
        count = int(tensors.get(STEPS, params.num_inference_steps or 1))
        strength = default_of(pipeline, "strength", 1.0) if params.strength is None else params.strength
        strength = float(tensors.get("strength", strength))
        return max(min(int(count * strength), count), 1)

    def begin(self, inputs: Mapping[str, Tensor], params: OutputParams) -> PipelineRun:
        """Run a new request up to its first denoising step. Raise InputError or OptionError for bad arguments."""
        pipeline = type(self._runs.pipeline)
        arguments = {**arguments_of(pipeline, inputs, params), "output_type": "pt", "return_dict": False}
        parameters = inspect.signature(pipeline.__call__).parameters
        return self._runs.begin({name: value for name, value in arguments.items() if name in parameters})

    def step(self, states: Sequence[PipelineRun], steps: Sequence[int]) -> list[PipelineRun | MMOutError]:
        """Run one denoising step of each request. Return the new states, or an MMOutError for each failed request."""
        del steps
        return self._runs.step(states)

    def finish(self, states: Sequence[PipelineRun]) -> list[Raw | MMOutError]:
        """Finish each request. Results are uint8 pictures [3, height, width], uint8 videos, or float32 rasters."""
        return [self._result(output) for output in self._runs.finish(states)]

    def preview(self, states: Sequence[PipelineRun]) -> list[Raw | MMOutError]:
        """Return a preview picture of each running request, decoded from its current latents."""
        return [self._result(output) for output in self._runs.preview(states)]

    def _result(self, output: Any) -> Raw | MMOutError:
        if isinstance(output, MMOutError):
            return output
        try:
            return result_of(output[0] if isinstance(output, tuple) else output, coloured=self._coloured)
        except MMOutError as error:
            return type(error)(message_of(error))
