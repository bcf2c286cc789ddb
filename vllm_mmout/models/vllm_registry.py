"""How a class of an author stands in vLLM's registry of models: imported when it is needed, inspected without cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from vllm.model_executor.models.registry import ModelRegistry, _BaseRegisteredModel, _ModelInfo

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.models.model_folders import author_class, forget, names, of_wings, path_of, record

_of_vllm: dict[str, Any] = {}
"""What vLLM itself has for an architecture that is served by a class of ours."""


@dataclass(frozen=True, eq=False)  # vLLM caches what an entry gave, and the class of a name may change
class AuthorsModel(_BaseRegisteredModel):
    """One architecture.

    vLLM's own lazy entries are inspected in a further process, which knows neither scripts nor notebooks, and cached
    by the hash of one file, so that a change of a base class would break the next start.
    """

    architecture: str

    def inspect_model_cls(self) -> _ModelInfo:
        """What vLLM asks of a model class before it is made."""
        return _ModelInfo.from_model_cls(self.load_model_cls())

    def load_model_cls(self) -> type[Any]:
        """The class that vLLM makes."""
        from vllm_mmout.models.single_pass import adapter_of  # not before an engine needs it

        return adapter_of(self.architecture)


def class_of_vllm(architecture: str) -> str | None:
    """Return the name of vLLM's own class for an architecture, even while ours serves it; None if vLLM has none."""
    stands = _of_vllm.get(architecture) or ModelRegistry.models.get(architecture)
    if stands is None or isinstance(stands, AuthorsModel):
        return None
    name: str = getattr(stands, "class_name", None) or getattr(stands, "model_cls", type(stands)).__name__
    return name


def announce(config: Mapping[str, Any], *, instead: bool = False) -> None:
    """Find the class that serves a folder and make it known to vLLM, here and in processes that are started later.

    ``instead``: also in the place of a class of vLLM's.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise OptionError(
            'config.json must name the model\'s class: add "architectures": ["YourModel"]; it has'
            f" {architectures!r} there"
        )
    architecture = architectures[0]
    if (path := path_of(architecture, config)) is not None:
        stands = getattr(ModelRegistry.models.get(architecture), "module_name", "")
        if stands.startswith("vllm.") and not instead and of_wings().get(architecture) != path:
            raise RegistrationError(
                f"vLLM has a model of its own called {architecture!r}, which {path} would replace; write another name"
                ' into "architectures" of config.json'
            )
        author_class(path)  # what is wrong with it is said here, before any process is started
        serve({architecture: path})
    elif architecture not in ModelRegistry.models:
        raise RegistrationError(
            f"config.json names the model {architecture!r}, which nothing registers here (known: {', '.join(names())});"
            ' name its class: "mmout": {"model": "module:Class"}, import the module that defines it, or install its'
            " package"
        )


def serve(paths: Mapping[str, str]) -> None:
    """Put classes into vLLM's registry of models; each is imported when an engine needs it."""
    record(paths)
    for architecture in paths:
        if (stands := ModelRegistry.models.get(architecture)) is not None and not isinstance(stands, AuthorsModel):
            _of_vllm[architecture] = stands
        ModelRegistry.models[architecture] = cast("Any", AuthorsModel(architecture))


def withdraw(architecture: str, *, converted: bool = False) -> None:
    """Remove our class of an architecture, so that vLLM serves it again.

    ``converted``: remove it even if vLLM has no class of this name, since vLLM converts another class.
    """
    if architecture in _of_vllm:
        ModelRegistry.models[architecture] = _of_vllm.pop(architecture)
    elif converted and isinstance(ModelRegistry.models.get(architecture), AuthorsModel):
        del ModelRegistry.models[architecture]
    else:
        return
    forget(architecture)
