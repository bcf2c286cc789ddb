"""`Wing`: describes an extension package, which adds models, routes or other features and can be removed.

The extension packages of this distribution are the folders of ``vllm_mmout/wings``. Another distribution adds an
extension package by an entry point of the group ``vllm_mmout.wings``, ``name = package:WING``. The core does not import
extension packages directly. It looks them up here.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from vllm_mmout.errors import RegistrationError
from vllm_mmout.importing import import_path

GROUP: Final = "vllm_mmout.wings"
_log = logging.getLogger("vllm.mmout")


@dataclass(frozen=True, kw_only=True)
class Wing:
    """Description of an extension package: the import paths of the objects that it adds to vllm_mmout.

    Objects are given as "package.module:attribute", and modules as "package.module". An object is imported only when it
    is first needed, so that an unused extension package costs nothing.
    """

    name: str
    output_processors: Mapping[str, str] = field(default_factory=dict)
    """Maps names of output processors, which any model can use, to the import paths of their classes."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Maps model architectures, as in ``config.json``, to the import paths of the model classes that serve them."""
    hooks: str = ""
    """Import path of a sequence that describes the vLLM internals on which the extension package depends.

    Each item is an `engine.hooks.hook.Hook` for a function or method, or a `private_names.Contact` for private names of
    a module.
    """
    engine: str = ""
    """Import path of a module that checks and prepares engines for the extension package.

    ``check_engine(vllm_config, bound=...)`` is called before an engine starts. ``bound`` is True if the model has an
    output processor. ``bind_async_llm(engine)`` and ``bind_llm(llm)`` are called for started engines whose model has an
    output processor.
    """
    configure: str = ""
    """Import path of a function that is called with vLLM's config before the engine starts. Its changes reach all
    processes of the engine."""
    processor_families: Mapping[str, str] = field(default_factory=dict)
    """Maps a prefix, such as "io_plugin:", to the import path of a `registry.registration.ProcessorFamily` class. The
    class finds the output processors whose names begin with the prefix."""
    model_families: Mapping[str, str] = field(default_factory=dict)
    """Maps model architectures to the import paths of `models.model_folders.ModelFamily` classes. Such a class adds
    missing entries to the ``config.json`` of a model folder."""
    kinds: str = ""
    """Import path of a `models.kind.ModelKind` object. The object describes a kind of model that needs several forward
    passes for each result, such as diffusion models."""
    folders: str = ""
    """Import path of a function that converts the ``config.json`` of a model folder from another format to this
    package's format. The function returns None for unknown formats.

    The function is called as ``(config, folder, asked=..., settings=...)``. ``asked`` is the output processor that the
    user named, or None. ``settings`` are the engine's settings for this package.
    """
    command: str = ""
    """Import path of a module whose function ``add_parser`` adds a command to ``vllm-mmout``."""
    run: str = ""
    """Import path of a module that adds flags to ``vllm-mmout run``. If the user sets such a flag, the module runs the
    command.

    ``add_flags(parser)`` adds the flags. ``asked(options)`` returns the names of the added flags that the user has set.
    If it returns a name, ``run(options, params)`` executes the command. Flags of two extension packages cannot be
    combined.
    """
    inputs: str = ""
    """Import path of a module that reads catalogue records, such as STAC items, as model inputs.

    The function ``one(data, opener)`` converts a record to a `models.inputs.catalogued.CataloguedInput`. The function
    opens the record's files with ``opener``. It returns None if ``data`` is not a record. The function ``many(data)``
    returns the inputs in a collection of records, or None for other data.
    """
    describe: str = ""
    """Import path of a module that writes a description of a saved result, such as a STAC item, next to the result.

    The function ``write(path, options, inputs)`` writes the description. The function is called if the request has the
    option ``stac_item``. Before the model runs, the function ``check()`` raises an error if packages are missing, and
    ``spare(path)`` raises an error if the description would overwrite a file.
    """
    testing: Mapping[str, str] = field(default_factory=dict)
    """Maps names to import paths of test functions. Users reach each function as ``vllm_mmout.testing.NAME``."""
    public: str = ""
    """Import path of a module that users reach as ``vllm_mmout.NAME``, where NAME is the extension package's name."""
    routes: str = ""
    """Import path of a `serving.extension.ServerExtension`, which adds routes to the server of ``vllm-mmout serve``."""
    results: str = ""
    """Import path of a `serving.result_addresses.ResultAddress` object. The object has the URL path of the results that
    the extension package serves.

    Other extension packages serve map tiles and STAC items of the results below that URL path.
    """

    def load(self, point: str, key: str = "") -> Any:
        """Import and return the object that the field named ``point`` refers to. Return None if the field is empty.

        If the field is a mapping, return the object that the entry ``key`` refers to, or None without such an entry.
        """
        path = getattr(self, point)
        if isinstance(path, Mapping):
            path = path.get(key)
        if not path:
            return None
        try:
            return import_path(path, point) if ":" in path else importlib.import_module(path)
        except (ImportError, RegistrationError) as error:
            raise RegistrationError(
                f"the wing {self.name!r} does not work: {error}; correct it, or uninstall the package that brings it"
            ) from error


def wings() -> tuple[Wing, ...]:
    """Return all usable extension packages. The packages of this distribution come first.

    A package that cannot be imported is logged and left out.
    """
    return tuple(_found()[0].values())


def failures() -> Mapping[str, str]:
    """Return the error message of each extension package that cannot be used, by package name."""
    return _found()[1]


def extensions(point: str, key: str = "") -> Iterator[Any]:
    """Yield the objects that extension packages define for ``point``, the name of a `Wing` field such as "routes".

    If the field is a mapping, its entry ``key`` is used. Packages without such an object are skipped. Each object is
    imported just before it is yielded.
    """
    for wing in wings():
        extension = wing.load(point, key)
        if extension is not None:
            yield extension


@cache
def all_extensions(point: str) -> tuple[Any, ...]:
    """Return the objects that extension packages define for ``point``, the name of a `Wing` field such as "inputs".

    The tuple is cached.
    """
    return tuple(extensions(point))


def configured(vllm_config: Any) -> Any:
    """Let all extension packages change vLLM's config in place. Return the config.

    Log packages that cannot be imported.
    """
    for wing in wings():
        try:
            configure = wing.load("configure")
        except RegistrationError as error:
            _log.error("%s", error)
            continue
        if configure is not None:
            configure(vllm_config)
    return vllm_config


def public_module(name: str) -> Any:
    """Return the public module of the extension package ``name``, or None if the package or module is missing."""
    return next((wing.load("public") for wing in wings() if wing.name == name and wing.public), None)


@cache
def _found() -> tuple[dict[str, Wing], dict[str, str]]:
    """Find all extension packages. Return the usable packages by name, and the errors of unusable packages by name."""
    folders = pkgutil.iter_modules([str(Path(__file__).with_name("wings"))], f"{GROUP}.")
    own_points = [EntryPoint(folder.name, f"{folder.name}:WING", GROUP) for folder in folders]
    usable: dict[str, Wing] = {}
    failed: dict[str, str] = {}
    for point in [*own_points, *entry_points(group=GROUP)]:
        try:
            wing = point.load()
            if not isinstance(wing, Wing):
                raise RegistrationError(f"it must be a vllm_mmout.wing.Wing, got {wing!r}")  # noqa: TRY301
            if wing.name in usable:
                raise RegistrationError(f"there is another wing {wing.name!r}")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - another author's module must not stop a text model
            package = point.dist.name if point.dist else "vllm-mmout"
            failed[point.name] = (
                f"the wing {point.name!r} of package {package} cannot be used: {type(error).__name__}: {error};"
                " correct or uninstall the package"
            )
            _log.error("%s", failed[point.name])
        else:
            usable[wing.name] = wing
    return usable, failed
