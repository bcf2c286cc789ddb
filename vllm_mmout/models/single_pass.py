"""SinglePassModel: a network that takes one tensor and gives one tensor, in the shape that vLLM wants of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import uuid4

import numpy as np
import torch
from torch import nn
from vllm.inputs import MultiModalDataDict, MultiModalInput, mm_input
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree, SupportsMultiModal
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.parse import ModalityDataItems, MultiModalDataParser, ProcessorBatchItems
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ProcessorInputs,
    PromptUpdate,
    TimingContext,
)

from vllm_mmout.errors import RegistrationError
from vllm_mmout.models.per_request import PerRequest
from vllm_mmout.params import OutputParams
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.multimodal import MultiModalDummyOptions

    from vllm_mmout.models.mapper import InputMapper

MODALITY = "image"
"""vLLM's name for all that is neither text, sound nor video."""


def as_mm_input(tensors: Mapping[str, np.ndarray | torch.Tensor]) -> MultiModalInput:
    """Render keyword tensors for the engine: no hashing, no processor run, no cache.

    Each tensor goes as a list of one, which vLLM leaves alone. Tensors it stacks, and fails, for all requests of the
    step and for good, where they differ in dtype; or casts one to the dtype of another, and so to other numbers.

    Args:
        tensors: keyword of ``forward`` to its tensor, without the batch axis.

    """
    batch = {key: [[torch.as_tensor(value)]] for key, value in tensors.items()}
    fields = {key: MultiModalFieldConfig.batched(MODALITY) for key in batch}
    return mm_input(
        prompt_token_ids=[1],
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(cast("Any", batch), fields),
        mm_hashes={MODALITY: [uuid4().hex]},
        mm_placeholders={MODALITY: [PlaceholderRange(offset=0, length=0)]},
    )


class _Item(ProcessorBatchItems[Any]):
    """One input as the user gave it; the model's mapper reads it."""

    def __init__(self, data: Any) -> None:
        super().__init__([data], MODALITY)


class _Parser(MultiModalDataParser):
    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        return None if data is None else _Item(data)


class SinglePassInfo(BaseProcessingInfo):
    """What vLLM asks about the model's inputs."""

    def get_data_parser(self) -> MultiModalDataParser:
        """The parser that leaves an input as it is."""
        return _Parser()

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """One input a request."""
        return {MODALITY: 1}

    def mapper(self) -> InputMapper:
        """The model's input mapper."""
        from vllm.model_executor.model_loader import get_model_architecture

        model_class, _ = get_model_architecture(self.ctx.model_config)
        factory = MULTIMODAL_INPUT_REGISTRY.input_mapper_for(model_class)
        if factory is None:
            raise RegistrationError(
                f"{model_class.__name__} has no input mapper; register one with"
                " @MULTIMODAL_INPUT_REGISTRY.register_input_mapper(...)"
            )
        return cast("InputMapper", factory(self.get_hf_config().to_dict()))


class SinglePassDummyInputs(BaseDummyInputsBuilder[SinglePassInfo]):
    """Inputs of the largest size, by which vLLM measures the memory of a forward."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """No text."""
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: MultiModalDummyOptions
    ) -> MultiModalDataDict:
        """One input of the largest size."""
        mapper = cast("Any", self.info.mapper())
        return {MODALITY: np.zeros((len(mapper.bands), mapper.max_size, mapper.max_size), np.float32)}


class SinglePassProcessor(BaseMultiModalProcessor[SinglePassInfo]):
    """Maps the inputs of requests that come through vLLM's own routes (``LLM.encode``, ``/pooling``)."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        return {key: MultiModalFieldConfig.batched(MODALITY) for key in hf_inputs}

    def _get_prompt_updates(self, *args: Any, **kwargs: Any) -> Sequence[PromptUpdate]:
        return []

    def apply(self, inputs: ProcessorInputs, timing_ctx: TimingContext) -> MultiModalInput:
        """Map the request's input, or fail before it reaches the engine."""
        (data,) = inputs.mm_data_items[MODALITY].get_all()
        return as_mm_input(self.info.mapper()(data, OutputParams()).tensors)


class SinglePassModel(nn.Module, IsAttentionFree, SupportsMultiModal):
    """Base of hand-written single-pass models: a subclass says how its network is built, and is registered."""

    supports_multimodal_raw_input_only = True
    is_pooling_model = True
    attn_type = "attention_free"
    keyword: ClassVar[str] = "pixel_values"

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.network = self.build(vllm_config.model_config.hf_config.to_dict())
        self.pooler = IdentityPooler()

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Make the network from the folder's ``config.json``."""
        raise NotImplementedError(f"{type(self).__name__} must define build(config)")

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """No text stands for an input."""
        return None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Nothing: the prompt's one token only stands for the request."""
        return torch.empty((input_ids.shape[0], 0), device=input_ids.device)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **inputs: Any,
    ) -> torch.Tensor:
        """Run the network once for each shape and dtype of the step.

        Args:
            input_ids: not used.
            positions: not used.
            intermediate_tensors: not used.
            inputs_embeds: not used.
            inputs: ``keyword`` to a list of the requests' tensors, each in a list of its own.

        """
        batch: list[torch.Tensor] = [tensor for (tensor,) in inputs[self.keyword]]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, tensor in enumerate(batch):
            groups.setdefault((tensor.shape, tensor.dtype), []).append(row)
        if len(groups) == 1:
            return self._run(batch)
        parts: list[Any] = [None] * len(batch)
        for rows in groups.values():
            for row, part in zip(rows, self._run([batch[row] for row in rows]), strict=True):
                parts[row] = part
        return PerRequest.of(parts, parts[0].device)

    def _run(self, alike: list[torch.Tensor]) -> torch.Tensor:
        stacked = alike[0].unsqueeze(0) if len(alike) == 1 else torch.stack(alike)
        return cast("torch.Tensor", self.network(stacked))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the network's weights; a missing or unexpected one is an error."""
        state = dict(weights)
        self.network.load_state_dict(state, strict=True)
        return {f"network.{name}" for name in state}
