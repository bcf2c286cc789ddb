"""Which class serves a model folder of ours, in this process and in those that it starts."""

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
"""Names the classes to processes that are started later: a JSON table, architecture -> "module:Class".

Without vLLM's prefix: vLLM warns of names that begin with it and that it does not know, and may refuse them.
"""

ENTRY_POINT_GROUP: Final = "vllm_mmout.models"
"""Group under which a package announces its model classes, ``architecture = module:Class``."""

EMBEDDED: Final = {"WaterIndex": "vllm_mmout.models.embedded.water_index:WaterIndex"}
"""Architecture -> class of this package's own models, known also where it is not installed but on the path."""

_served: dict[str, str] = {}
"""Architecture -> "module:Class" of the models that this process has announced to vLLM."""


def record(paths: Mapping[str, str]) -> None:
    """Remember which classes this process serves, and name them to processes that are started later."""
    _served.update(paths)
    os.environ[ENVIRONMENT] = json.dumps(_served)


def forget(architecture: str) -> None:
    """Serve an architecture no more."""
    _served.pop(architecture, None)
    os.environ[ENVIRONMENT] = json.dumps(_served)


def announced() -> dict[str, str]:
    """The classes that the process which started this one serves: architecture -> "module:Class"; none is imported."""
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:  # nothing may raise here: it would stop text models too
        logging.getLogger("vllm.mmout").error("%s=%r names no models: %s", ENVIRONMENT, text, error)  # noqa: TRY400 - the message says it all
        return {}


def path_of(architecture: str, config: Mapping[str, Any]) -> str | None:
    """The class that serves an architecture as "module:Class", None where nothing names one.

    The first of these counts: ``"mmout": {"model": "module:Class"}`` in ``config.json``; a class decorated in this
    process; a class announced by an installed package.
    """
    table = config.get("mmout")
    named = table.get("model") if isinstance(table, Mapping) else None
    if named is not None:
        if not isinstance(named, str) or not is_path(named):
            raise OptionError(f'"model" in the "mmout" table of config.json must be "module:Class", got {named!r}')
        return named
    if (decorated := MULTIMODAL_INPUT_REGISTRY.model(architecture)) is not None:
        return f"{decorated.__module__}:{decorated.__qualname__}"
    return _installed().get(architecture)


def names() -> list[str]:
    """Architectures that need no entry in ``config.json``."""
    return list(dict.fromkeys([*MULTIMODAL_INPUT_REGISTRY.models(), *_installed()]))


def is_served(architecture: str) -> bool:
    """Whether a class of an author stands behind an architecture."""
    return architecture in _served


def served_class(architecture: str) -> type[nn.Module]:
    """The author's class behind a served architecture, as it is now: a notebook may have defined it anew."""
    return author_class(_served[architecture])


def author_class(path: str) -> type[nn.Module]:
    """Import a model class."""
    from torch import nn

    # One inside a function, or in a notebook, can be found in no other way than by its decorator.
    found = MULTIMODAL_INPUT_REGISTRY.model_at(path) or import_path(path, "model class")
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise RegistrationError(f"{path} must be a class that is a torch.nn.Module, got {found!r}")
    return found


def check_for_children(model: type) -> None:
    """Check that a process started anew can import a class."""
    if "<locals>" in model.__qualname__:
        raise RegistrationError(
            f"model class {model.__qualname__} is defined inside a function, where the engine's processes cannot find"
            " it; define it at the top of a module"
        )
    main = sys.modules["__main__"]
    if model.__module__ == "__main__":
        can = getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None
        where = "a notebook or at the prompt"
    else:
        can, where = _finds(model.__module__), f"module {model.__module__!r}, which is not on the path"
    if not can:
        raise RegistrationError(
            f"model class {model.__qualname__} is defined in {where}: the engine's processes cannot import it. Write it"
            " to a module on the path and import it from there, or run the engine in this process with"
            " VLLM_ENABLE_V1_MULTIPROCESSING=0"
        )


def _installed() -> dict[str, str]:
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {**{point.name: f"{point.module}:{point.attr}" for point in points}, **EMBEDDED, **of_wings()}


def of_wings() -> dict[str, str]:
    """Architecture -> "module:Class" of the models that wings bring; they may stand in place of vLLM's own."""
    return {architecture: path for wing in wings() for architecture, path in wing.models.items()}


def _finds(module: str) -> bool:
    """Whether a new interpreter with this one's path would find a module; what is loaded here does not count."""
    top = module.partition(".")[0]
    specs: list[ModuleSpec | None] = [finder.find_spec(top, None) for finder in sys.meta_path]
    return any(specs)


class ModelFamily(Protocol):
    """What a wing knows of the folders of an architecture."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Whether a folder's ``config.json`` is one of this family."""

    def completed(self, config: dict[str, Any]) -> dict[str, Any]:
        """``config.json`` with what it does not say itself: the output processor and its options.

        OptionError: an entry is malformed.
        """


def family_of(config: Mapping[str, Any]) -> ModelFamily | None:
    """The family that a folder's ``config.json`` is of, by its first architecture; None for most folders."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    families = extensions("model_families", first) if isinstance(first, str) else ()
    return next((made for made in (family() for family in families) if made.serves(config)), None)


def as_ours(
    config: Mapping[str, Any], folder: str, asked: Any = None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """``config.json`` of a folder that a wing serves, as one of ours; None for most folders.

    ``asked`` is what the engine argument names as output processor, ``settings`` our table in ``additional_config``.
    """
    found = (take(config, folder, asked=asked, settings=settings or {}) for take in extensions("folders"))
    return next((taken for taken in found if taken is not None), None)


def served_if_named(config: Mapping[str, Any], folder: str) -> str | None:
    """Return the wing that serves a folder if the engine argument names it as output processor; None if none does."""
    for wing in wings():
        take = wing.load("folders")
        if take is not None and take(config, folder, asked=wing.name, settings={}) is not None:
            return wing.name
    return None
