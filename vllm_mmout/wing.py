"""Wing: a product that stands on the core and can be taken off again, and the points at which it extends the core.

Our own wings are the folders of ``vllm_mmout/wings``; an installed package adds one by an entry point of the group
``vllm_mmout.wings``, ``name = package:WING``. The core imports none of them: it asks here what wings have at a point.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import vllm_mmout.wings
from vllm_mmout.errors import RegistrationError
from vllm_mmout.importing import import_path

GROUP: Final = "vllm_mmout.wings"
_log = logging.getLogger("vllm.mmout")


@dataclass(frozen=True, kw_only=True)
class Wing:
    """One wing; every object below is named as "package.module:attribute", a module as "package.module".

    What is named is imported when it is first needed, so that a wing costs nothing where it is not used.
    """

    name: str
    output_processors: Mapping[str, str] = field(default_factory=dict)
    """Name -> class of the output processors that any model can be given by name."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Architecture -> class of models that folders of this architecture are served by."""
    hooks: str = ""
    """A sequence of rows of the hook table: each a `engine.hooks.hook.Hook` or a `private_names.Contact`."""
    engine: str = ""
    """A module with ``check_engine(vllm_config, bound=...)``, called before an engine is started, and
    ``bind_async_llm`` and ``bind_llm``, called with one whose model has an output processor."""
    configure: str = ""
    """A function ``(vllm_config)``, called with the config that vLLM has made of engine arguments; what it sets there
    reaches all processes of the engine."""
    processor_families: Mapping[str, str] = field(default_factory=dict)
    """Prefix -> `registry.registration.ProcessorFamily` of the output processors whose names begin so."""
    model_families: Mapping[str, str] = field(default_factory=dict)
    """Architecture -> `models.model_folders.ModelFamily` of folders that are of another form than ours."""
    kinds: str = ""
    """A `models.kind.Kind` of models that answer in another way than in one forward."""
    folders: str = ""
    """A function ``(config, folder, asked=..., settings=...)`` that gives the ``config.json`` of a folder of another
    form as that of one of ours, or None for a folder that is none of its kind. ``settings`` are those of the engine."""
    command: str = ""
    """A module with ``add_parser``: a command of ``vllm-mmout``."""
    run: str = ""
    """A module with ``add_flags``, for flags of ``vllm-mmout run``, and ``run``, which runs that command where they say
    so, and else gives None."""
    testing: Mapping[str, str] = field(default_factory=dict)
    """Name -> function that `vllm_mmout.testing` has beside its own."""
    public: str = ""
    """A module that is an attribute of the package ``vllm_mmout``, under the wing's name."""
    routes: str = ""
    """What the server of ``vllm-mmout serve`` has beside the core's routes, a `serving.extension.ServerExtension`."""

    def load(self, point: str, key: str = "") -> Any:
        """Import what the wing has at a point; None where it has nothing there."""
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
    """The wings that are there, ours first. One that cannot be imported is logged and left out."""
    return tuple(_found()[0].values())


def failures() -> Mapping[str, str]:
    """The wings that cannot be imported -> why, and what to do."""
    return _found()[1]


def extensions(point: str, key: str = "") -> Iterator[Any]:
    """What all wings have at a point, imported one by one; of points that are tables, what they have under a key."""
    for wing in wings():
        found = wing.load(point, key)
        if found is not None:
            yield found


def configured(vllm_config: Any) -> Any:
    """An engine's config to which wings have added; one that cannot be imported ends no text model, and is logged."""
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
    """The public module of a wing, by the wing's name; None if there is none."""
    return next((wing.load("public") for wing in wings() if wing.name == name and wing.public), None)


@cache
def _found() -> tuple[dict[str, Wing], dict[str, str]]:
    """The wings of this process by name, and what is wrong with others."""
    folders = pkgutil.iter_modules(vllm_mmout.wings.__path__, f"{vllm_mmout.wings.__name__}.")
    ours = [EntryPoint(folder.name, f"{folder.name}:WING", GROUP) for folder in folders]
    found: dict[str, Wing] = {}
    failed: dict[str, str] = {}
    for point in [*ours, *entry_points(group=GROUP)]:
        try:
            wing = point.load()
            if not isinstance(wing, Wing):
                raise RegistrationError(f"it must be a vllm_mmout.wing.Wing, got {wing!r}")  # noqa: TRY301
            if wing.name in found:
                raise RegistrationError(f"there is another wing {wing.name!r}")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - another author's module: text models must not end with it
            package = point.dist.name if point.dist else "vllm-mmout"
            failed[point.name] = (
                f"the wing {point.name!r} of package {package} cannot be used: {type(error).__name__}: {error};"
                " correct or uninstall the package"
            )
            _log.error("%s", failed[point.name])
        else:
            found[wing.name] = wing
    return found, failed
