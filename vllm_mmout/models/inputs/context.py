"""InputContext and DummyData: what functions of vLLM's first registries are called with, and what they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from vllm.config import ModelConfig


@dataclass(frozen=True, slots=True)
class InputContext:
    """The model, for functions that are registered for its inputs."""

    model_config: ModelConfig
    """vLLM's."""

    def get_hf_config(self, hf_config_type: type | None = None) -> Any:
        """The model's ``config.json`` as a transformers configuration.

        Args:
            hf_config_type: class that it must be of.

        Raises:
            InputError: it is of another class.

        """
        config = self.model_config.hf_config
        if hf_config_type is not None and not isinstance(config, hf_config_type):
            raise InputError(
                f"the model's configuration is a {type(config).__name__}, not the {hf_config_type.__name__} that was"
                " asked for; correct the type"
            )
        return config

    def get_hf_processor(self, **options: Any) -> Any:
        """The ``AutoProcessor`` of the model's folder; no code of the folder is run."""
        from transformers import AutoProcessor

        model = self.model_config
        return AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]  # transformers' classes have no types
            model.model, revision=model.revision, trust_remote_code=False, **options
        )


class DummyData(NamedTuple):
    """The largest input of a model."""

    seq_data: Any = None
    """Not used by a single-pass model."""
    multi_modal_data: Any = None
    """``{"image": data}``, one input in any form that the model takes."""
    multi_modal_placeholders: Any = None
    """Not used by a single-pass model."""
