"""Register model classes in vLLM's model registry without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from vllm.model_executor.models.registry import ModelRegistry, _BaseRegisteredModel, _ModelInfo

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.models.model_folders import author_class, forget, names, of_wings, path_of, record

_replaced_entries: dict[str, Any] = {}
"""Entries of vLLM's model registry that this package has replaced, by architecture. `withdraw` restores an entry."""


@dataclass(frozen=True, eq=False)  # vLLM caches the result of an entry, but the class of a name may change
class AuthorsModel(_BaseRegisteredModel):
    """Entry in vLLM's model registry for an architecture that is served by a class registered with this package.

    vLLM inspects its own lazy entries in another process, which knows neither scripts nor notebooks. It also caches
    the result by the hash of one file, so a change of a base class would break the next start.
    """

    architecture: str

    def inspect_model_cls(self) -> _ModelInfo:
        """Return the properties of the model class that vLLM needs before it creates the model."""
        return _ModelInfo.from_model_cls(self.load_model_cls())

    def load_model_cls(self) -> type[Any]:
        """Return the class that vLLM instantiates."""
        from vllm_mmout.models.single_pass import adapter_of  # a slow import, needed only by an engine

        return adapter_of(self.architecture)


def class_of_vllm(architecture: str) -> str | None:
    """Return the name of vLLM's own class for an architecture. Return None if vLLM lacks such a class.

    The class is found even if a class of this package replaces it in vLLM's registry.
    """
    entry = _replaced_entries.get(architecture) or ModelRegistry.models.get(architecture)
    if entry is None or isinstance(entry, AuthorsModel):
        return None
    name: str = getattr(entry, "class_name", None) or getattr(entry, "model_cls", type(entry)).__name__
    return name


def announce(config: Mapping[str, Any], *, instead: bool = False) -> None:
    """Register a model folder's class with vLLM, in this process and in processes that are started later.

    With ``instead``, the class may replace a class of vLLM.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise OptionError(
            'config.json must name the model\'s class: add "architectures": ["YourModel"]; it has'
            f" {architectures!r} there"
        )
    architecture = architectures[0]
    if (path := path_of(architecture, config)) is not None:
        module = getattr(ModelRegistry.models.get(architecture), "module_name", "")
        if module.startswith("vllm.") and not instead and of_wings().get(architecture) != path:
            raise RegistrationError(
                f"vLLM has a model of its own called {architecture!r}, which {path} would replace; write another name"
                ' into "architectures" of config.json'
            )
        author_class(path)  # raises its errors here, before any process is started
        serve({architecture: path})
    elif architecture not in ModelRegistry.models:
        raise RegistrationError(
            f"config.json names the model {architecture!r}, which is not registered here (known: {', '.join(names())});"
            ' name its class: "mmout": {"model": "module:Class"}, import the module that defines it, or install its'
            " package"
        )


def serve(paths: Mapping[str, str]) -> None:
    """Add classes to vLLM's model registry. Each class is imported when an engine needs it."""
    record(paths)
    for architecture in paths:
        if (entry := ModelRegistry.models.get(architecture)) is not None and not isinstance(entry, AuthorsModel):
            _replaced_entries[architecture] = entry
        ModelRegistry.models[architecture] = cast("Any", AuthorsModel(architecture))


def withdraw(architecture: str, *, converted: bool = False) -> None:
    """Remove this package's class for an architecture from vLLM's registry, and restore vLLM's own class.

    With ``converted``, remove it even if vLLM has no class of this name, since vLLM converts another class.
    """
    if architecture in _replaced_entries:
        ModelRegistry.models[architecture] = _replaced_entries.pop(architecture)
    elif converted and isinstance(ModelRegistry.models.get(architecture), AuthorsModel):
        del ModelRegistry.models[architecture]
    else:
        return
    forget(architecture)
