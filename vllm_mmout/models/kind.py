"""Kind: models that answer in another way than in one forward, which a wing brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_mmout.importing import import_path
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.mapper import MappedInput
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind; what is written "module:name" is imported when a model of it is served."""

    name: str
    """As it stands in messages: "iterative"."""
    methods: tuple[str, ...]
    """A model class that has all of these is of this kind."""
    adapter: str
    """Subclass of `models.single_pass.SinglePassModel` that vLLM gets."""
    arguments: str
    """A function ``(config) -> dict`` of the engine arguments that such a model needs."""
    tokens: str
    """A function ``(model, config, mapped, params) -> int``: the prompt tokens that stand for a request, one a step."""
    options: tuple[str, ...] = ()
    """Those of `params_parts.OF_STEPS` that every model of this kind takes; a class names more as ``takes``."""

    def engine_arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of engine arguments for a model."""
        arguments: Any = import_path(self.arguments, "engine arguments")
        found: dict[str, Any] = arguments(config)
        return found

    def tokens_of(self, model: type, config: Mapping[str, Any], mapped: MappedInput, params: OutputParams) -> int:
        """The prompt tokens of a request. OptionError or InputError: they are too many, or none."""
        count: Any = import_path(self.tokens, "number of steps")
        tokens: int = count(model, config, mapped, params)
        return tokens


def kind_of(model: type) -> Kind | None:
    """The kind of a model class, None for one that answers in one forward."""
    kinds: tuple[Kind, ...] = tuple(extensions("kinds"))
    return next((kind for kind in kinds if all(callable(getattr(model, name, None)) for name in kind.methods)), None)
