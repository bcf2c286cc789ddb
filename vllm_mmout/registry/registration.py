"""Registration: one output processor under one name, as a class or as the path of a class imported when needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.io_plugin import io_plugin_processor
from vllm_mmout.registry.importing import import_path, is_path
from vllm_mmout.registry.io_plugins import find_plugin, plugin_in

ProcessorTarget: TypeAlias = type[OutputProcessor] | str
"""An output processor's class, its path "pkg.mod:Class", or "io_plugin:NAME"."""

NONE = "none"
"""The name that switches a model's output processor off; nothing can be registered under it."""

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Registration:
    """One output processor under one name."""

    name: str
    """What requests and configs call it."""
    target: ProcessorTarget
    """The class, its path "pkg.mod:Class", or "io_plugin:NAME"."""
    origin: str
    """Who registered it, in words for people."""

    @property
    def path(self) -> str:
        """The class as "pkg.mod:Class"."""
        if isinstance(self.target, str):
            return self.target
        return f"{self.target.__module__}:{self.target.__qualname__}"

    def same_target(self, other: Registration) -> bool:
        """Whether both mean one class, as far as can be said without importing a path."""
        if isinstance(self.target, str) or isinstance(other.target, str):
            return self.path == other.path
        return self.target is other.target

    def load(self) -> type[OutputProcessor]:
        """The class, imported now if it was registered by path.

        Raises:
            RegistrationError: the path cannot be imported, or is no OutputProcessor.

        """
        return import_processor(self.target) if isinstance(self.target, str) else self.target

    def __str__(self) -> str:
        return f"{self.path} ({self.origin})"


def make_registration(processor: ProcessorTarget, name: str | None, origin: str) -> Registration:
    """Check what an author registers.

    Args:
        processor: a subclass of OutputProcessor, or its path "pkg.mod:Class", which is not imported here; or
            "io_plugin:NAME".
        name: what it shall be called; None: the attribute ``name`` that the class itself defines, else the class' name
            (for a path always the latter, as it is not imported); an IO plugin is called "io_plugin:NAME".
        origin: who registers it.

    Raises:
        RegistrationError: it is neither of the two, or the name cannot be used.

    """
    if isinstance(processor, str):
        if not is_target(processor):
            raise RegistrationError(
                f'{processor!r} is no path of an output processor; write "package.module:Class", or give the class'
            )
    elif not is_processor_class(processor):
        raise RegistrationError(
            f"an output processor must be a subclass of vllm_mmout.OutputProcessor or its path, got {processor!r}"
        )
    own = default_name(processor)
    if name is None:
        name = own
    if not is_name(name) and (name != own or plugin_in(own) is None):
        raise RegistrationError(
            f"{name!r} cannot be the name of an output processor; use letters, digits, '_', '-' and '.'"
            f' (and not "{NONE}", which switches processors off)'
        )
    return Registration(name, processor, origin)


def with_added(table: Mapping[str, Registration], new: Registration, owner: str) -> dict[str, Registration]:
    """A copy of ``table`` with ``new`` at its end; the same class under the same name changes nothing.

    Raises:
        RegistrationError: another class has that name.

    """
    old = table.get(new.name)
    if old is None:
        return {**table, new.name: new}
    if not old.same_target(new):
        raise RegistrationError(
            f"{owner} has the output processor {new.name!r} already: {old.path}; cannot register {new.path} under the"
            " same name; give one of them another name with name=..."
        )
    return dict(table)


def import_processor(path: str) -> type[OutputProcessor]:
    """Import the class at "pkg.mod:Class"; of "io_plugin:NAME" nothing is imported but what stands for the plugin.

    Raises:
        RegistrationError: module or class is not there, cannot be imported, or is no OutputProcessor; or no such plugin
            is installed.

    """
    plugin = plugin_in(path)
    if plugin is not None:
        find_plugin(plugin)
        return io_plugin_processor(plugin)
    found = import_path(path, "output processor")
    if not is_processor_class(found):
        raise RegistrationError(f"{path!r} must be a subclass of vllm_mmout.OutputProcessor, got {found!r}")
    return found


def is_target(text: str) -> bool:
    """Whether ``text`` says itself what it means, "pkg.mod:Class" or "io_plugin:NAME", rather than by a known name."""
    return plugin_in(text) is not None or is_path(text)


def is_processor_class(value: object) -> TypeGuard[type[OutputProcessor]]:
    """Whether ``value`` is a subclass of OutputProcessor (the base itself decodes nothing)."""
    return isinstance(value, type) and issubclass(value, OutputProcessor) and value is not OutputProcessor


def is_name(name: object) -> bool:
    """Whether an output processor can be called ``name``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name != NONE


def default_name(processor: ProcessorTarget) -> str:
    """What an output processor is called when nobody says otherwise.

    A name that a class inherits does not count: ``class FloodMask(SegmentationProcessor)`` is "FloodMask".
    """
    if isinstance(processor, str):
        return processor if plugin_in(processor) is not None else processor.rpartition(":")[2].rpartition(".")[2]
    own = vars(processor).get("name")
    return own if isinstance(own, str) else processor.__name__
