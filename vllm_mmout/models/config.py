"""MMOutConfig: the configuration class of model folders with ``"model_type": "mmout"``."""

from __future__ import annotations

from typing import Any, Self

from transformers import AutoConfig, PretrainedConfig

from vllm_mmout.errors import HookError

MODEL_TYPE = "mmout"


class MMOutConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # of __init_subclass__, which has no types
    """Holds the folder's ``config.json`` as it is; a single-pass model has no vocabulary and no hidden size."""

    model_type = MODEL_TYPE
    hidden_size = 0
    num_attention_heads = 1
    num_hidden_layers = 0
    vocab_size = 2
    max_position_embeddings = 1

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As transformers'; the first thing that vLLM does with a folder.

        Raises:
            HookError: vLLM has drifted, so that no engine could serve the folder.

        """
        if _unservable is not None:
            raise HookError(str(_unservable))
        config: Self = super().from_dict(config_dict, **kwargs)
        return config

    def get_text_config(self, *args: Any, **kwargs: Any) -> MMOutConfig:
        """Where vLLM looks for the sizes of a language model: there is none, whatever such names mean in the folder.

        The heads of an image model may be a list, its hidden size is not that of placeholder tokens.
        """
        return MMOutConfig()


_unservable: HookError | None = None


def register_config(unservable: HookError | None = None) -> None:
    """Make the class known to transformers, and so to vLLM; called in every process.

    Args:
        unservable: why no hook is installed; raised when an engine is to be made of a folder of ours.

    """
    global _unservable  # noqa: PLW0603 - for the process, as the registration is
    _unservable = unservable
    AutoConfig.register(MODEL_TYPE, MMOutConfig, exist_ok=True)
