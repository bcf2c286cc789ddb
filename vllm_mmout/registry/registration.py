"""Registration: one output processor under one name, as a class or as the path of a class imported when needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeGuard

from vllm_mmout.errors import RegistrationError
from vllm_mmout.importing import import_path, is_path
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.wing import wings

ProcessorTarget: TypeAlias = type[OutputProcessor] | str
"""An output processor's class, its path "pkg.mod:Class", or a name of a wing's family, as "io_plugin:NAME"."""

NONE = "none"
"""The name that switches a model's output processor off; nothing can be registered under it."""

_NAME = re.compile(r"[\w.-]+")


class ProcessorFamily(Protocol):
    """Output processors of a wing that are found by a prefix of their names."""

    def installed(self) -> Iterable[Registration]:
        """Those that can be named."""

    def processor(self, name: str) -> type[OutputProcessor]:
        """The class of this name."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One output processor under one name."""

    name: str
    target: ProcessorTarget
    origin: str

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
        """The class, imported now if it was registered by path."""
        return import_processor(self.target) if isinstance(self.target, str) else self.target

    def __str__(self) -> str:
        return f"{self.path} ({self.origin})"


def make_registration(processor: ProcessorTarget, name: str | None, origin: str) -> Registration:
    """Check what an author registers."""
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
    if not is_name(name) and (name != own or not is_of_family(own)):
        raise RegistrationError(
            f"{name!r} cannot be the name of an output processor; use letters, digits, '_', '-' and '.'"
            f' (and not "{NONE}", which switches processors off)'
        )
    return Registration(name, processor, origin)


def with_added(table: Mapping[str, Registration], new: Registration, owner: str) -> dict[str, Registration]:
    """A copy of ``table`` with ``new`` at its end; the same class under the same name changes nothing."""
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
    """Import the class at "pkg.mod:Class", or have a wing's family find it by its name."""
    for wing in wings():
        for prefix in wing.processor_families:
            if path.startswith(prefix):
                family: ProcessorFamily = wing.load("processor_families", prefix)()
                return family.processor(path)
    found = import_path(path, "output processor")
    if not is_processor_class(found):
        raise RegistrationError(f"{path!r} must be a subclass of vllm_mmout.OutputProcessor, got {found!r}")
    return found


def is_target(text: str) -> bool:
    """Whether ``text`` says itself what it means, "pkg.mod:Class" or "io_plugin:NAME", rather than by a known name."""
    return is_of_family(text) or is_path(text)


def is_of_family(name: str) -> bool:
    """Whether a wing finds output processors that are called so."""
    return any(name.startswith(prefix) for wing in wings() for prefix in wing.processor_families)


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
        return processor if is_of_family(processor) else processor.rpartition(":")[2].rpartition(".")[2]
    own = vars(processor).get("name")
    return own if isinstance(own, str) else processor.__name__
