"""Serve OpenAI's image routes for models that compute in several steps, such as a diffusers pipeline."""

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
    """Server extension for models that make a picture in several steps, such as diffusion models.

    A request may ask for ``n`` results.
    """

    generations = GENERATIONS.schema("prompt")

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """Return `StepService` if the engine's model computes results in several steps, or None."""
        inputs = engine.output_processor.binding.inputs
        return StepService if inputs is not None and inputs.kind is ITERATIVE else None
