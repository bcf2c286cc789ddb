"""`ModelKind`: a kind of model that does not answer in one forward pass. Extension packages define such kinds."""

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
    """A kind of model that needs several forward passes.

    Values of the form "module:name" are imported when a model of this kind is served.
    """

    name: str
    """Name of the kind of model in messages, such as "iterative"."""
    methods: tuple[str, ...]
    """Names of methods. A model class that has all of these methods is of this kind."""
    adapter: str
    """Subclass of `models.single_pass.SinglePassModel` that vLLM runs."""
    arguments: str
    """Function ``(config) -> dict`` that returns the engine arguments that models of this kind need."""
    tokens: str
    """Function ``(model, config, mapped, params) -> int``: number of prompt tokens of a request, one for each step."""
    options: tuple[str, ...] = ()
    """Names of the options in `params.OF_STEPS` that all models of this kind accept. A model class lists the names of
    further options in its attribute ``takes``."""

    def engine_arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of the engine arguments for a model."""
        make_arguments: Any = import_path(self.arguments, "engine arguments")
        defaults: dict[str, Any] = make_arguments(config)
        return defaults

    def tokens_of(self, model: type, config: Mapping[str, Any], mapped: MappedInput, params: OutputParams) -> int:
        """Return the number of prompt tokens of a request; raise OptionError or InputError if it is 0 or too large."""
        count: Any = import_path(self.tokens, "number of steps")
        tokens: int = count(model, config, mapped, params)
        return tokens


def kind_of(model: type) -> ModelKind | None:
    """Return the kind of a model class, or None if it answers in one forward pass."""
    kinds: tuple[ModelKind, ...] = tuple(extensions("kinds"))
    return next((kind for kind in kinds if all(callable(getattr(model, name, None)) for name in kind.methods)), None)
