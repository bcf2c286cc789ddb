"""Implement vLLM's classes for multimodal inputs, for models that need a single forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm.inputs import MultiModalDataDict, MultiModalInput
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.parse import ModalityDataItems, MultiModalDataParser, ProcessorBatchItems
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ProcessorInputs,
    PromptUpdate,
    TimingContext,
)

from vllm_mmout.errors import ModelError
from vllm_mmout.models.inputs.context import InputContext
from vllm_mmout.models.inputs.model_inputs import ModelInputs
from vllm_mmout.models.model_folders import served_class
from vllm_mmout.params import OutputParams
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.config.multimodal import MultiModalDummyOptions


def inputs_of(model_config: ModelConfig) -> ModelInputs:
    """Return the `ModelInputs` object that converts users' inputs to tensors for the model that vLLM serves."""
    return ModelInputs(served_class(model_config.architecture), InputContext(model_config))


class _InputParser(MultiModalDataParser):
    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        return None if data is None else ProcessorBatchItems([data], IMAGE)


class SinglePassInfo(BaseProcessingInfo):
    """Description of a model's inputs for vLLM, such as the maximum number of inputs in a request."""

    def get_data_parser(self) -> MultiModalDataParser:
        """Return a parser that leaves an input unchanged."""
        return _InputParser()

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Return the maximum number of inputs per request, which is 1."""
        return {IMAGE: 1}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the maximum number of tokens of an input, as registered for the model.

        The default is 0, because these models need no placeholder tokens in the prompt.
        """
        return {IMAGE: self.inputs.max_tokens()}

    @cached_property
    def inputs(self) -> ModelInputs:
        """Converter of users' inputs for this model."""
        return inputs_of(self.ctx.model_config)


class SinglePassDummyInputs(BaseDummyInputsBuilder[SinglePassInfo]):
    """Inputs of the maximum size, for vLLM's memory profiling of a forward pass."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Return an empty text."""
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: MultiModalDummyOptions
    ) -> MultiModalDataDict:
        """Return one input of the maximum size. Raise ModelError if that size is unknown."""
        if (dummy := self.info.inputs.dummy()) is None:
            name = self.info.inputs.model.__name__
            raise ModelError(
                f"vLLM measures the memory that {name} needs, but nothing says how large an input can be; decorate it"
                " with @MULTIMODAL_INPUT_REGISTRY.register_dummy_data(...), or give its mapper `inputs`"
            )
        return {IMAGE: dummy}


class SinglePassProcessor(BaseMultiModalProcessor[SinglePassInfo]):
    """Processor of inputs that arrive through vLLM's own entry points (``LLM.encode``, ``/pooling``)."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        return {key: MultiModalFieldConfig.batched(IMAGE) for key in hf_inputs}

    def _get_prompt_updates(self, *args: Any, **kwargs: Any) -> Sequence[PromptUpdate]:
        return []

    def apply(self, inputs: ProcessorInputs, timing_ctx: TimingContext) -> MultiModalInput:
        """Convert a request's input to vLLM's input format. Errors in the input are raised before the engine runs."""
        (data,) = inputs.mm_data_items[IMAGE].get_all()
        mapped = self.info.inputs.map(data, OutputParams())
        return self.info.inputs.render(mapped, self.info.inputs.tokens(mapped, OutputParams()))
