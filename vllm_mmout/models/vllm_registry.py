"""How a class of an author stands in vLLM's registry of models: imported when it is needed, inspected without cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from vllm.model_executor.models.registry import ModelRegistry, _BaseRegisteredModel, _ModelInfo


@dataclass(frozen=True)
class AuthorsModel(_BaseRegisteredModel):
    """One architecture; vLLM's own lazy entries are inspected in a further process and cached by a file's hash."""

    architecture: str

    def inspect_model_cls(self) -> _ModelInfo:
        """What vLLM asks of a model class before it is made."""
        return _ModelInfo.from_model_cls(self.load_model_cls())

    def load_model_cls(self) -> type[Any]:
        """The class that vLLM makes."""
        from vllm_mmout.models.single_pass import adapter_of  # not before an engine needs it

        return adapter_of(self.architecture)


def put(architecture: str) -> None:
    """Let vLLM know an architecture; the same one again changes nothing."""
    entry = AuthorsModel(architecture)
    if ModelRegistry.models.get(architecture) != entry:
        ModelRegistry.models[architecture] = cast("Any", entry)
