"""Look up the class that serves a model folder, in this process and in the processes that it starts."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.importing import import_path, is_path
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wing import extensions, wings

if TYPE_CHECKING:
    from torch import nn

ENVIRONMENT: Final = "MMOUT_MODELS"
"""Environment variable that tells child processes which model classes to serve, as JSON {architecture: "module:Class"}.

The name does not begin with ``VLLM_``, since vLLM warns about unknown variables with that prefix, and may refuse them.
"""

ENTRY_POINT_GROUP: Final = "vllm_mmout.models"
"""Entry point group of packages that provide model classes, as ``architecture = module:Class``."""

EMBEDDED: Final = {"WaterIndex": "vllm_mmout.models.embedded.water_index:WaterIndex"}
"""Models that are part of this package, as architecture -> "module:Class".

They also work if this package is only on ``sys.path`` and not installed."""

_served: dict[str, str] = {}
"""Models that this process registered with vLLM, as architecture -> "module:Class"."""


def record(paths: Mapping[str, str]) -> None:
    """Record the classes (architecture -> "module:Class") that this process and its child processes serve."""
    _served.update(paths)
    os.environ[ENVIRONMENT] = json.dumps(_served)


def forget(architecture: str) -> None:
    """Stop serving an architecture, also in processes that are started later."""
    _served.pop(architecture, None)
    os.environ[ENVIRONMENT] = json.dumps(_served)


def announced() -> dict[str, str]:
    """Return the classes that the parent process serves, as architecture -> "module:Class", without importing them."""
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:  # an exception here would stop text models too
        logging.getLogger("vllm.mmout").error("%s=%r names no models: %s", ENVIRONMENT, text, error)  # noqa: TRY400 - the traceback adds nothing
        return {}


def path_of(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Return the class that serves an architecture, as "module:Class". Return None if the class is unknown.

    The first of these that exists is used: ``"mmout": {"model": "module:Class"}`` in ``config.json``; a class decorated
    in this process; a class announced by an installed package.
    """
    table = config.get("mmout")
    path = table.get("model") if isinstance(table, Mapping) else None
    if path is not None:
        if not isinstance(path, str) or not is_path(path):
            raise OptionError(f'"model" in the "mmout" table of config.json must be "module:Class", got {path!r}')
        return path
    if (decorated := MULTIMODAL_INPUT_REGISTRY.model(architecture)) is not None:
        return f"{decorated.__module__}:{decorated.__qualname__}"
    return _installed().get(architecture)


def names() -> list[str]:
    """Return the architectures whose class is registered in this process or provided by an installed package.

    The ``config.json`` of a model folder need not name these classes.
    """
    return list(dict.fromkeys([*MULTIMODAL_INPUT_REGISTRY.models(), *_installed()]))


def is_served(architecture: str) -> bool:
    """Return whether the class that serves an architecture is registered with this package, not built into vLLM."""
    return architecture in _served


def served_class(architecture: str) -> type[nn.Module]:
    """Return the model class that serves an architecture. If a notebook redefined the class, return the new class."""
    return author_class(_served[architecture])


def author_class(path: str) -> type[nn.Module]:
    """Import a model class, given as "module:Class", and check that it is a torch.nn.Module."""
    from torch import nn

    # A class inside a function or in a notebook cannot be imported, so the classes that were decorated come first.
    model_class = MULTIMODAL_INPUT_REGISTRY.model_at(path) or import_path(path, "model class")
    if not isinstance(model_class, type) or not issubclass(model_class, nn.Module):
        raise RegistrationError(f"{path} must be a class that is a torch.nn.Module, got {model_class!r}")
    return model_class


def check_for_children(model: type) -> None:
    """Check that child processes can import a model class. Raise RegistrationError if they cannot."""
    if "<locals>" in model.__qualname__:
        raise RegistrationError(
            f"model class {model.__qualname__} is defined inside a function, where the engine's processes cannot find"
            " it; define it at the top of a module"
        )
    main = sys.modules["__main__"]
    if model.__module__ == "__main__":
        importable = getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None
        where = "a notebook or at the prompt"
    else:
        importable, where = _finds(model.__module__), f"module {model.__module__!r}, which is not on the path"
    if not importable:
        raise RegistrationError(
            f"model class {model.__qualname__} is defined in {where}: the engine's processes cannot import it. Write it"
            " to a module on the path and import it from there, or run the engine in this process with"
            " VLLM_ENABLE_V1_MULTIPROCESSING=0"
        )


def _installed() -> dict[str, str]:
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {**{point.name: f"{point.module}:{point.attr}" for point in points}, **EMBEDDED, **of_wings()}


def of_wings() -> dict[str, str]:
    """Return the models that extension packages (wings) provide, as architecture -> "module:Class".

    They may replace vLLM's own models for the same architecture.
    """
    return {architecture: path for wing in wings() for architecture, path in wing.models.items()}


def _finds(module: str) -> bool:
    """Return whether a new Python process with the current ``sys.path`` could import ``module``.

    A module that is already loaded in this process is searched for all the same.
    """
    top = module.partition(".")[0]
    specs: list[ModuleSpec | None] = [finder.find_spec(top, None) for finder in sys.meta_path]
    return any(specs)


class ModelFamily(Protocol):
    """Interface that extension packages implement to support model folders of certain architectures."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Return whether this `ModelFamily` can serve a model folder. ``config`` is the folder's ``config.json``."""

    def completed(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a ``config.json`` to which the output processor and its options are added if they are missing.

        Raises OptionError if an entry is malformed.
        """


def family_of(config: Mapping[str, Any]) -> ModelFamily | None:
    """Return the `ModelFamily` that supports the first architecture in a ``config.json``, or None."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    families = extensions("model_families", first) if isinstance(first, str) else ()
    return next((family for family in (make() for make in families) if family.serves(config)), None)


def as_ours(
    config: Mapping[str, Any], folder: str, asked: Any = None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Translate the ``config.json`` of a model folder in another format, such as diffusers, to this package's format.

    Extension packages do the translation. Return None if none of them knows the folder's format.

    ``asked`` is the output processor in the engine argument, or None. ``settings`` is this package's table in the
    engine argument ``additional_config``.
    """
    translations = (take(config, folder, asked=asked, settings=settings or {}) for take in extensions("folders"))
    return next((translated for translated in translations if translated is not None), None)


def served_if_named(config: Mapping[str, Any], folder: str) -> str | None:
    """Return the name of an extension package that would serve a model folder if the user named the package.

    The user names the package as output processor. Error messages suggest it. Return None if no package would serve
    the folder.
    """
    for wing in wings():
        take = wing.load("folders")
        if take is not None and take(config, folder, asked=wing.name, settings={}) is not None:
            return wing.name
    return None
