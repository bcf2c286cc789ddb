"""MMOutConfig: the configuration class of model folders with ``"model_type": "mmout"``."""

from __future__ import annotations

from transformers import AutoConfig, PretrainedConfig

MODEL_TYPE = "mmout"


class MMOutConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # of __init_subclass__, which has no types
    """Holds the folder's ``config.json`` as it is; a single-pass model has no vocabulary and no hidden size."""

    model_type = MODEL_TYPE
    hidden_size = 0
    num_attention_heads = 1
    num_hidden_layers = 0
    vocab_size = 2
    max_position_embeddings = 8


def register_config() -> None:
    """Make the class known to transformers, and so to vLLM; called in every process."""
    AutoConfig.register(MODEL_TYPE, MMOutConfig, exist_ok=True)
