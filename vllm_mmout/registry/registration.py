"""`Registration`, an output processor registered under a name, by class or by import path."""

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
"""Output processor as a class, as a path "pkg.mod:Class", or as a name with a prefix, such as "io_plugin:NAME"."""

NONE = "none"
"""Name that switches off a model's output processor. No processor can be registered under it."""

_NAME = re.compile(r"[\w.-]+")


class ProcessorFamily(Protocol):
    """Output processors of an extension package. Their names begin with a common prefix, such as "io_plugin:"."""

    def installed(self) -> Iterable[Registration]:
        """Return registrations of all installed output processors with this family's prefix, such as "io_plugin:"."""

    def processor(self, name: str) -> type[OutputProcessor]:
        """Return the class of the output processor called ``name``."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Output processor that is registered under a name."""

    name: str
    target: ProcessorTarget
    origin: str
    """Package or call that registered the processor, as text for messages."""

    @property
    def path(self) -> str:
        """Import path of the class, as "pkg.mod:Class"."""
        if isinstance(self.target, str):
            return self.target
        return f"{self.target.__module__}:{self.target.__qualname__}"

    def same_target(self, other: Registration) -> bool:
        """Return whether two registrations refer to the same class. Nothing is imported."""
        if isinstance(self.target, str) or isinstance(other.target, str):
            return self.path == other.path
        return self.target is other.target

    def load(self) -> type[OutputProcessor]:
        """Return the class of the processor. Import it if it was registered by its path."""
        return import_processor(self.target) if isinstance(self.target, str) else self.target

    def __str__(self) -> str:
        return f"{self.path} ({self.origin})"


def make_registration(processor: ProcessorTarget, name: str | None, origin: str) -> Registration:
    """Create the registration of a processor. Raise RegistrationError if the processor or its name is invalid."""
    if isinstance(processor, str):
        if not is_target(processor):
            raise RegistrationError(
                f'{processor!r} is not a path of an output processor; write "package.module:Class", or give the class'
            )
    elif not is_processor_class(processor):
        raise RegistrationError(
            f"an output processor must be a subclass of vllm_mmout.OutputProcessor or its path, got {processor!r}"
        )
    class_name = default_name(processor)
    if name is None:
        name = class_name
    if not is_name(name) and (name != class_name or not is_of_family(class_name)):
        raise RegistrationError(
            f"{name!r} cannot be the name of an output processor; use letters, digits, '_', '-' and '.'"
            f' (and not "{NONE}", which switches processors off)'
        )
    return Registration(name, processor, origin)


def with_added(table: Mapping[str, Registration], new: Registration, owner: str) -> dict[str, Registration]:
    """Return ``table`` with the registration ``new`` added. Raise RegistrationError if another class has that name.

    ``table`` maps names to registrations. ``owner`` describes the table in the message.
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
    """Return the class of an output processor, given its path "pkg.mod:Class" or a name such as "io_plugin:NAME".

    A prefix such as "io_plugin:" belongs to an extension package, which then looks the name up.
    """
    for wing in wings():
        for prefix in wing.processor_families:
            if path.startswith(prefix):
                family: ProcessorFamily = wing.load("processor_families", prefix)()
                return family.processor(path)
    processor = import_path(path, "output processor")
    if not is_processor_class(processor):
        raise RegistrationError(f"{path!r} must be a subclass of vllm_mmout.OutputProcessor, got {processor!r}")
    return processor


def is_target(text: str) -> bool:
    """Return whether ``text`` is a processor's path "pkg.mod:Class", or a name such as "io_plugin:NAME".

    Other names, such as "segmentation", are looked up among the registered output processors.
    """
    return is_of_family(text) or is_path(text)


def is_of_family(name: str) -> bool:
    """Return whether a name begins with the prefix of an extension package, such as "io_plugin:"."""
    return any(name.startswith(prefix) for wing in wings() for prefix in wing.processor_families)


def is_processor_class(value: object) -> TypeGuard[type[OutputProcessor]]:
    """Return whether ``value`` is a subclass of OutputProcessor, but not OutputProcessor itself."""
    return isinstance(value, type) and issubclass(value, OutputProcessor) and value is not OutputProcessor


def is_name(name: object) -> bool:
    """Return whether ``name`` may be the name of an output processor."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name != NONE


def default_name(processor: ProcessorTarget) -> str:
    """Return the name of a processor that is registered without an explicit name.

    A ``name`` attribute counts only on the class itself: ``class FloodMask(SegmentationProcessor)`` is "FloodMask".
    """
    if isinstance(processor, str):
        return processor if is_of_family(processor) else processor.rpartition(":")[2].rpartition(".")[2]
    name = vars(processor).get("name")
    return name if isinstance(name, str) else processor.__name__
