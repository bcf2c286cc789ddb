"""What the server has for iterative models: their own service of the image routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.wings.iterative.kind import ITERATIVE
from vllm_mmout.wings.iterative.serving.fields import GENERATIONS
from vllm_mmout.wings.iterative.serving.service import StepService

if TYPE_CHECKING:
    from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
    from vllm_mmout.serving.service import ForwardService


class StepRoutes(ServerExtension):
    """Pictures out of texts and pictures, several of one request."""

    generations = GENERATIONS.schema("prompt")

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """The service of an engine whose model is iterative."""
        inputs = engine.output_processor.binding.inputs
        return StepService if inputs is not None and inputs.kind is ITERATIVE else None
