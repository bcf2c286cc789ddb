"""Define `ModelKind`, the description of models that need several forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_mmout.importing import import_path
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.mapped_input import MappedInput
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """Kind of models that need several forward passes, such as diffusion models. Extension packages define kinds.

    Values of the form "module:name" are imported when a model of this kind is served.
    """

    name: str
    """Name of the kind of model in error messages, such as "iterative"."""
    methods: tuple[str, ...]
    """Names of the methods that identify this kind of model. A model class with all these methods is of this kind."""
    adapter: str
    """Adapter class, as "module:Class", that makes the model look like a vLLM model."""
    arguments: str
    """Function, as "module:name", that takes ``config.json`` and returns arguments for vLLM's engine."""
    tokens: str
    """Function, as "module:name", that returns the number of prompt tokens of a request.

    A request has one prompt token for each forward pass.
    """
    options: tuple[str, ...] = ()
    """Names of the request options that all models of this kind accept. A model class lists further options in its
    attribute ``takes``."""

    def engine_arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine arguments that a model with this ``config.json`` needs."""
        make_arguments: Any = import_path(self.arguments, "engine arguments")
        defaults: dict[str, Any] = make_arguments(config)
        return defaults

    def tokens_of(self, model: type, config: Mapping[str, Any], mapped: MappedInput, params: OutputParams) -> int:
        """Return the number of prompt tokens of a request, which is the number of its forward passes."""
        count: Any = import_path(self.tokens, "number of steps")
        tokens: int = count(model, config, mapped, params)
        return tokens


def kind_of(model: type) -> ModelKind | None:
    """Return the `ModelKind` of a model class that needs several forward passes, such as a diffusion model.

    Return None for a model class that needs a single forward pass.
    """
    kinds: tuple[ModelKind, ...] = tuple(extensions("kinds"))
    return next((kind for kind in kinds if all(callable(getattr(model, name, None)) for name in kind.methods)), None)
