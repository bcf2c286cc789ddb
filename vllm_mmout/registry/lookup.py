"""What a config calls output processors by, and the classes that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.messages import close_match
from vllm_mmout.registry.registration import NONE, Registration, default_name, import_processor, is_name, is_target

if TYPE_CHECKING:
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry.outputs import OutputRegistry


KEY = "output_processor"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One processor that is asked for."""

    name: str
    """Its registered name, a path "pkg.mod:Class", or "io_plugin:NAME"."""
    alias: str | None
    """What requests shall call it; None: its own name."""


def parse_names(value: object, source: str) -> tuple[Wanted, ...] | None:
    """Read the value of ``"output_processor"``: the default first; empty for "none", None where it is not set."""
    if value is None:
        return None
    if value == NONE:
        return ()
    if isinstance(value, str):
        pairs: list[tuple[object, object]] = [(None, value)]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = [(None, name) for name in value]
    else:
        pairs = []
    if not pairs:
        raise OptionError(
            f"{KEY!r} in {source} must be a name, a list of names or a table alias -> name, got {value!r}"
        )
    return tuple(_wanted(alias, name, source) for alias, name in pairs)


def _wanted(alias: object, name: object, source: str) -> Wanted:
    if not isinstance(name, str) or not name:
        raise OptionError(f'{KEY!r} in {source}: an output processor\'s name or "pkg.mod:Class" is text, got {name!r}')
    if name == NONE:
        raise OptionError(f"{KEY!r} in {source} has {NONE!r} among others; give it alone to switch processors off")
    if alias is None:
        return Wanted(name, None)
    if not isinstance(alias, str) or not is_name(alias):
        raise OptionError(
            f"{KEY!r} in {source}: {alias!r} cannot be an alias; use letters, digits, '_', '-', '.'; not {NONE!r}"
        )
    return Wanted(name, alias)


class ModelsOwn:
    """The processors that are registered for one model; the model's class is looked at only when it can matter."""

    def __init__(
        self, registry: OutputRegistry, architectures: Sequence[str], model_class: Callable[[], type | None]
    ) -> None:
        self._registry = registry
        self._by_architecture = registry.of_architectures(architectures)
        self._model_class = model_class

    @cached_property
    def _on_class(self) -> Mapping[str, Registration]:
        return self._registry.of_class(self._model_class())

    @property
    def first(self) -> Mapping[str, Registration]:
        """Those that serve the model when no config names any: the architecture's, else those on its class."""
        return self._by_architecture or self._on_class

    @property
    def all(self) -> Mapping[str, Registration]:
        """Those that can be named; of two with one name the architecture's."""
        return {**self._on_class, **self._by_architecture}


def find_all(
    wanted: Iterable[Wanted], registry: OutputRegistry, own: ModelsOwn, source: str
) -> dict[str, type[OutputProcessor]]:
    """The processors asked for, by the name that requests will use, in the order asked."""
    found: dict[str, type[OutputProcessor]] = {}
    for one in wanted:
        said = is_target(one.name)
        processor = import_processor(one.name) if said else _registered(one.name, registry, own, source).load()
        name = one.alias or (default_name(processor) if said else one.name)
        if name in found:
            raise OptionError(
                f'{KEY!r} in {source} names {name!r} twice; give each a name of its own: {{"alias": "name", ...}}'
            )
        found[name] = processor
    return found


def _registered(name: str, registry: OutputRegistry, own: ModelsOwn, source: str) -> Registration:
    registration = own.all.get(name) or registry.installed(name)
    if registration is None:
        known = [*own.all, *registry.known()]
        raise RegistrationError(
            f"unknown output processor {name!r} in {source}{close_match(name, known)} (of this model:"
            f" {', '.join(own.all) or 'none'}; installed: {', '.join(registry.known())}); or write its path"
            ' "pkg.mod:Class"'
        )
    return registration
