"""InputRegistry: vLLM's own registry of multimodal inputs, and the input mappers of single-pass models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from vllm_mmout.errors import RegistrationError

Model = TypeVar("Model", bound=type)

InputMapperFactory: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Called with the model's ``config.json``, gives what turns raw data into the keyword tensors of ``forward``."""

FACTORY = "_input_mapper_factory"
"""Attribute of a model class that holds its input mapper's factory."""


class InputRegistry:
    """The input half: everything of vLLM's ``MULTIMODAL_REGISTRY``, and input mappers.

    What is not defined here is looked up on vLLM's registry, imported at first use. A model registered with either is
    known to both, as vLLM keeps its factory on the model's class.
    """

    def register_input_mapper(self, mapper: InputMapperFactory) -> Callable[[Model], Model]:
        """Decorate a model class with its input mapper; the class is returned unchanged.

        Args:
            mapper: a class or function that makes the mapper from the model's ``config.json``; the same one twice is a
                no-op, a subclass may have another one than its base.

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class has another one already.

        """
        if not callable(mapper):
            raise RegistrationError(f"an input mapper must be callable, got {mapper!r}")

        def decorate(model: Model) -> Model:
            if not isinstance(model, type):
                raise RegistrationError(f"register_input_mapper decorates a model class, got {model!r}")
            old = vars(model).get(FACTORY)
            if old is not None and old.mapper is not mapper:
                raise RegistrationError(
                    f"model {model.__name__} has the input mapper {old.mapper!r} already; cannot register {mapper!r};"
                    " remove one of the two"
                )
            setattr(model, FACTORY, _Mapper(mapper))
            return model

        return decorate

    def input_mapper_for(self, model: type) -> InputMapperFactory | None:
        """What was registered on ``model`` or the nearest of its bases that has a mapper, None without."""
        found = getattr(model, FACTORY, None)
        return found.mapper if isinstance(found, _Mapper) else None

    def __getattr__(self, name: str) -> Any:
        """What vLLM's registry has under ``name``."""
        if name.startswith("__"):  # asked by copy, pickle and inspect: no reason to import vLLM
            raise AttributeError(f"InputRegistry has no attribute {name!r}")
        from vllm_mmout.engine.model_class import multimodal_registry

        return getattr(multimodal_registry(), name)


class _Mapper:
    """Keeps a mapper on a class without the class making a method of it."""

    __slots__ = ("mapper",)

    def __init__(self, mapper: InputMapperFactory) -> None:
        self.mapper = mapper


MULTIMODAL_INPUT_REGISTRY = InputRegistry()
"""The input registry of this process."""
