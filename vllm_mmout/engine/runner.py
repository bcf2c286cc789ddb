"""Which models need vLLM's Model Runner V1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.engine.binding import resolve_choice
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def v1_only_features(vllm_config: VllmConfig) -> list[str]:
    """What of this engine Model Runner V2 does not have, in the words of vLLM's own list; nothing for token models."""
    model_config = vllm_config.model_config
    if model_config is None or model_config.runner_type != "pooling":
        return []
    if model_config.is_multimodal_raw_input_only_model:
        return ["models with raw multimodal inputs"]
    try:
        bound = resolve_choice(vllm_config) is not None
    except MMOutError:  # raised again where the engine is made, which is the place for it
        return []
    return ["plugin poolers"] if bound else []
