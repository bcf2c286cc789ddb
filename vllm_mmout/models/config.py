"""Define `MMOutConfig`, the transformers config class for model folders with ``"model_type": "mmout"``."""

from __future__ import annotations

import copy
from typing import Any, Self

from transformers import AutoConfig, PretrainedConfig

from vllm_mmout.errors import HookError

MODEL_TYPE = "mmout"


class MMOutConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration of a model that is not a language model.

    It keeps an unchanged copy of the ``config.json`` in the model's folder.
    """

    model_type = MODEL_TYPE
    hidden_size = 0
    num_attention_heads = 1
    num_hidden_layers = 0
    vocab_size = 2
    max_position_embeddings = 1 << 20  # a request of an iterative model has one token for each step

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Create the configuration from a dict. Raise HookError if the installed vLLM is not supported.

        This method is the first call for a folder.
        """
        if _unservable is not None:
            raise HookError(str(_unservable))
        as_written = copy.deepcopy(config_dict)
        config: Self = super().from_dict(config_dict, **kwargs)
        config._json = as_written
        config._disable_encoder_decoder()
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dict, including the default entries of transformers.

        `config_json` returns the folder's ``config.json`` unchanged.
        """
        entries: dict[str, Any] = super().to_dict()
        entries.pop("_json", None)
        return entries

    def update(self, config_dict: dict[str, Any]) -> None:
        """Update entries of the configuration, for example with vLLM's ``hf_overrides``."""
        super().update(config_dict)
        vars(self).setdefault("_json", {}).update(copy.deepcopy(config_dict))
        self._disable_encoder_decoder()

    def _disable_encoder_decoder(self) -> None:
        """Set ``is_encoder_decoder`` to False, whatever ``config.json`` says.

        transformers marks every model of the DETR family as an encoder-decoder. vLLM would schedule it like a language
        model with an encoder's output beside the tokens.
        """
        self.is_encoder_decoder = False

    def get_text_config(self, *args: Any, **kwargs: Any) -> MMOutConfig:
        """Return an empty configuration, because the model is not a language model.

        vLLM reads the sizes of a language model from this configuration. Entries of ``config.json`` that have the names
        of such sizes may mean something else.
        """
        return MMOutConfig()


def config_json(config: PretrainedConfig) -> dict[str, Any]:
    """Return a copy of a model's ``config.json`` as a dict.

    For other model types than "mmout", it also has the default entries of transformers.
    """
    written = getattr(config, "_json", None)
    entries: dict[str, Any] = config.to_dict() if written is None else copy.deepcopy(written)
    return entries


_unservable: HookError | None = None


def register_config(unservable: HookError | None = None) -> None:
    """Register `MMOutConfig` with transformers, so that vLLM can read ``config.json`` files of model type "mmout".

    If this package does not support the installed vLLM, ``unservable`` is the error that reading a folder raises.
    """
    global _unservable  # noqa: PLW0603 - per process, like the registration
    _unservable = unservable
    AutoConfig.register(MODEL_TYPE, MMOutConfig, exist_ok=True)
