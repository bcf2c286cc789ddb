"""MMOutConfig: the configuration class of model folders with ``"model_type": "mmout"``."""

from __future__ import annotations

import copy
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
    max_position_embeddings = 1 << 20  # a request of an iterative model is a token a step

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As transformers'; raises HookError where vLLM has drifted, as it is the first thing done with a folder."""
        if _unservable is not None:
            raise HookError(str(_unservable))
        as_written = copy.deepcopy(config_dict)
        config: Self = super().from_dict(config_dict, **kwargs)
        config._json = as_written
        config._answer_as_single_pass()
        return config

    def to_dict(self) -> dict[str, Any]:
        """As transformers', with what it adds and changes; the file itself is `config_json`."""
        entries: dict[str, Any] = super().to_dict()
        entries.pop("_json", None)
        return entries

    def update(self, config_dict: dict[str, Any]) -> None:
        """As transformers'; vLLM's ``hf_overrides`` come here."""
        super().update(config_dict)
        vars(self).setdefault("_json", {}).update(copy.deepcopy(config_dict))
        self._answer_as_single_pass()

    def _answer_as_single_pass(self) -> None:
        """Tell vLLM what holds of a single-pass model, whatever its folder says.

        transformers writes of every model of the DETR family that it is an encoder-decoder, by which vLLM schedules a
        language model with an encoder's output beside the tokens.
        """
        self.is_encoder_decoder = False

    def get_text_config(self, *args: Any, **kwargs: Any) -> MMOutConfig:
        """Where vLLM looks for the sizes of a language model: the names of such may mean other things in a folder."""
        return MMOutConfig()


def config_json(config: PretrainedConfig) -> dict[str, Any]:
    """A model's ``config.json``: of a folder of ours as it was written, else what transformers makes of it."""
    written = getattr(config, "_json", None)
    entries: dict[str, Any] = config.to_dict() if written is None else copy.deepcopy(written)
    return entries


_unservable: HookError | None = None


def register_config(unservable: HookError | None = None) -> None:
    """Make the class known to transformers and vLLM; ``unservable`` says why no hook is installed."""
    global _unservable  # noqa: PLW0603 - for the process, as the registration is
    _unservable = unservable
    AutoConfig.register(MODEL_TYPE, MMOutConfig, exist_ok=True)
