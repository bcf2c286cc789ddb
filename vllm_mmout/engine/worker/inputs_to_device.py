"""Pass the tensors of requests to ``forward`` in vLLM's Model Runner V2."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm.model_executor.model_loader.utils import get_model_cls
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.encoder_budget import MultiModalBudget
from vllm.multimodal.utils import group_and_batch_mm_kwargs
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.pool import pooling_runner

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.multimodal.inputs import MultiModalFeatureSpec
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.worker.gpu.input_batch import InputBatch

_STATE_CLASS_METHOD = "get_model_state_cls"
"""Name of a static method that a vLLM model class may have. It returns the model's own ``ModelState`` class."""


class RawInputState(ModelState):
    """ModelState that keeps each request's tensors until the request ends, and passes them to ``forward`` by keyword.

    The tensors are batched by vLLM's own rules, as in Model Runner V1.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._features: dict[str, list[MultiModalFeatureSpec]] = {}

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """Store the tensors of a new request."""
        self._features[new_req_data.req_id] = new_req_data.mm_features

    def remove_request(self, req_id: str) -> None:
        """Drop the tensors of a request."""
        self._features.pop(req_id, None)

    def prepare_inputs_embeds(self, *args: Any) -> None:
        """Return None, because models whose inputs are only tensors use no token embeddings."""
        return

    def prepare_inputs(self, input_batch: InputBatch, req_states: Any) -> dict[str, Any]:
        """Return the keyword arguments of ``forward`` for the requests of a step, in the order of the batch.

        The requests of vLLM's dummy runs and kernel warm-up have no tensors, so they get dummy inputs.
        """
        ids = input_batch.req_ids
        features = [feature for name in ids for feature in self._features.get(name, ())]
        items = [(feature.modality, feature.data) for feature in features if feature.data is not None]
        return self._batched(items) if items else self.prepare_dummy_inputs(len(ids), input_batch.num_tokens)

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """Build the keyword arguments of ``forward`` for `num_reqs` dummy inputs of the largest size."""
        return self._batched([self._dummy] * num_reqs)

    @cached_property
    def _dummy(self) -> tuple[str, Any]:
        budget = MultiModalBudget(self.vllm_config, MULTIMODAL_REGISTRY, enable_cache=False)
        modality = budget.get_modality_with_max_tokens()
        dummy = budget.processor.get_dummy_mm_inputs(mm_counts={modality: 1})
        return modality, dummy["mm_kwargs"][modality][0]

    def prepare_attn(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return an empty dict, because models whose inputs are only tensors do not use vLLM's attention."""
        return {}

    def _batched(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        keywords: dict[str, Any] = {}
        for _, _, batch in group_and_batch_mm_kwargs(items, device=self.device, pin_memory=PIN_MEMORY):
            keywords.update(batch)
        return keywords


def serve_by_v2(vllm_config: VllmConfig) -> None:
    """Make vLLM's Model Runner V2 accept a model with output processors.

    If the model's inputs are only tensors, it is run with `RawInputState`, unless it has a ``ModelState`` of its own.
    """
    pooling_runner._SUPPORTED_TASKS |= {"plugin"}  # noqa: SLF001 - in the hook table
    config = vllm_config.model_config
    if not config.is_multimodal_raw_input_only_model:
        return
    if not config.get_vocab_size():  # the runner divides by it
        config.model_arch_config.vocab_size = 1
    model: Any = get_model_cls(config)
    if not hasattr(model, _STATE_CLASS_METHOD):
        setattr(model, _STATE_CLASS_METHOD, staticmethod(lambda: RawInputState))
