"""Add a description of the model to the list at ``/v1/models``.

``vllm-mmout info --json`` prints the same description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.model_info import model_info
from vllm_mmout.errors import MMOutError
from vllm_mmout.log import logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig

    from vllm_mmout.engine.binding import EngineBinding


class DescribedModels(OpenAIServingModels):
    """vLLM's list of the served models, with a field ``mmout`` in the entries of base models."""

    mmout_info: dict[str, Any]
    """Description of the base model's inputs, results and options, as dicts and lists that JSON can represent."""

    async def show_available_models(self) -> Any:
        """Return vLLM's list of the served models, with the description of the base model."""
        models: Any = await super().show_available_models()
        for card in models.data:
            if self.is_base_model(card.id):
                card.mmout = self.mmout_info  # vLLM's cards accept further fields
        return models


def describe_models(models: Any, binding: EngineBinding, model_config: ModelConfig) -> None:
    """Add the model's description to ``/v1/models``. If the description cannot be made, only log the error.

    The description calls methods of the output processors. They can be another author's code, and can raise.
    """
    try:
        info = model_info(binding, model_config)
    except MMOutError as error:
        logger.error("/v1/models does not describe the model: %s", error)
        return
    rebase(models, DescribedModels)
    models.mmout_info = msgspec.to_builtins(info)
