"""PipelineModel: a pipeline of diffusers as an iterative model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from vllm_mmout.errors import MMOutError, message_of
from vllm_mmout.params import OutputParams
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.iterative.pipelines.arguments import STEPS, arguments_of, default_of, takes
from vllm_mmout.wings.iterative.pipelines.loading import KEY, class_of_folder, load
from vllm_mmout.wings.iterative.pipelines.mapper import mapper_of
from vllm_mmout.wings.iterative.pipelines.results import result_of
from vllm_mmout.wings.iterative.pipelines.run import TILED_ABOVE, Request, Runs

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

_COLOURED: Final = frozenset({"image", "video"})
"""Output processors of pictures."""


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class PipelineModel(nn.Module):
    """Runs the requests of one pipeline, each as diffusers would run it alone."""

    loads_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        said = config[KEY]
        pipeline = load(said["folder"], torch.get_default_dtype(), torch.get_default_device())
        self._runs = Runs(pipeline, said.get("tiled_above", TILED_ABOVE))
        table = config.get("mmout")
        self._coloured = isinstance(table, Mapping) and table.get("output_processor", "image") in _COLOURED

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments of the pipeline that a request can say."""
        return takes(class_of_folder(config[KEY]["folder"]))

    @staticmethod
    def count_steps(config: Mapping[str, Any], tensors: Mapping[str, Any], params: OutputParams) -> int:
        """How many steps a request takes: of a pipeline that starts from a picture those that its strength leaves.

        Some schedulers take a step more, which `finish` does.
        """
        pipeline = class_of_folder(config[KEY]["folder"])
        count = int(tensors.get(STEPS, params.num_inference_steps or 1))
        strength = default_of(pipeline, "strength", 1.0) if params.strength is None else params.strength
        strength = float(tensors.get("strength", strength))
        return max(min(int(count * strength), count), 1)

    def begin(self, inputs: Mapping[str, Tensor], params: OutputParams) -> Request:
        """Start a request, and encode what it says; InputError, OptionError: the pipeline refuses it."""
        pipeline = type(self._runs.pipeline)
        arguments = {**arguments_of(pipeline, inputs, params), "output_type": "pt", "return_dict": False}
        known = inspect.signature(pipeline.__call__).parameters
        return self._runs.begin({name: value for name, value in arguments.items() if name in known})

    def step(self, states: Sequence[Request], steps: Sequence[int]) -> list[Request | MMOutError]:
        """Take each request one step further; an error stands in the place of its request."""
        del steps
        return self._runs.step(states)

    def finish(self, states: Sequence[Request]) -> list[Raw | MMOutError]:
        """The result of each request: uint8 [3, height, width], frames [frames, 3, height, width], or float32 bands."""
        return [self._result(given) for given in self._runs.finish(states)]

    def preview(self, states: Sequence[Request]) -> list[Raw | MMOutError]:
        """What each request looks like on its way."""
        return [self._result(given) for given in self._runs.preview(states)]

    def _result(self, given: Any) -> Raw | MMOutError:
        if isinstance(given, MMOutError):
            return given
        try:
            return result_of(given[0] if isinstance(given, tuple) else given, coloured=self._coloured)
        except MMOutError as error:
            return type(error)(message_of(error))
