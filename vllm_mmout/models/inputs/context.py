"""Define `InputContext` and `DummyData` for the input functions that a model registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_mmout.errors import InputError, RegistrationError
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    from vllm.config import ModelConfig


@dataclass(frozen=True, slots=True)
class InputContext:
    """Argument that is passed to a model's registered input functions. It holds the model's configuration."""

    model_config: ModelConfig
    """vLLM's configuration of the model."""
    _loaded: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache that keeps the model's ``AutoProcessor`` under the key "processor", so that it is loaded only once."""

    def get_hf_config(self, hf_config_type: type | None = None) -> Any:
        """Return the model's transformers configuration. Raise InputError if it is not of type ``hf_config_type``."""
        config = self.model_config.hf_config
        if hf_config_type is not None and not isinstance(config, hf_config_type):
            raise InputError(
                f"the model's configuration is a {type(config).__name__}, not the {hf_config_type.__name__} that was"
                " asked for; correct the type"
            )
        return config

    def get_hf_processor(self, **options: Any) -> Any:
        """Return the ``AutoProcessor`` from the model's folder. Code in the folder is not run."""
        if not options and "processor" in self._loaded:
            return self._loaded["processor"]
        from transformers import AutoProcessor

        model = self.model_config
        processor = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]  # transformers' classes have no types
            model.model, revision=model.revision, trust_remote_code=False, **options
        )
        if not options:
            self._loaded["processor"] = processor
        return processor


class DummyData(NamedTuple):
    """Largest input of a model. A registered function returns it for vLLM's memory profiling."""

    seq_data: Any = None
    """Dummy prompt. It is ignored, because vLLM builds the prompt itself."""
    multi_modal_data: Any = None
    """Largest input as ``{"image": data}``, in any form that the model accepts."""
    multi_modal_placeholders: Any = None
    """Not used."""


def dummy_of(context: InputContext, factory: Callable[..., Any], model: str) -> Any:
    """Return a model's largest input, for memory profiling. ``factory`` is the function registered to create it."""
    dummy = factory(context, context.model_config.max_model_len, {IMAGE: 1})
    for part in dummy if isinstance(dummy, tuple) else (dummy,):
        inputs = part.get("multi_modal_data", part) if isinstance(part, Mapping) else None
        if isinstance(inputs, Mapping):
            data = inputs.get(IMAGE, inputs)
            return data[0] if isinstance(data, list) and len(data) == 1 else data
    raise RegistrationError(
        f'the dummy data of {model} must be DummyData with multi_modal_data={{"{IMAGE}": ...}}, got {dummy!r}'
    )


def processed(context: InputContext, processor: Callable[..., Any], data: Any) -> Any:
    """Return ``data`` as changed by ``processor``, the function that a model registered to process its inputs."""
    inputs = processor(context, {"prompt_token_ids": [1], "multi_modal_data": {IMAGE: data}})
    return inputs["multi_modal_data"][IMAGE]


def tokens_of(context: InputContext, registered: Any, model: str) -> int:
    """Return the maximum number of tokens of one input. ``registered`` is the number, or a function that returns it.

    The function is called with ``context``. If ``registered`` is None, return 0. Raise RegistrationError if the number
    is not an integer, or is negative.
    """
    value = registered(context) if callable(registered) else registered or 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RegistrationError(f"max tokens of {model} must be a number from 0 on, got {value!r}")
    return value
