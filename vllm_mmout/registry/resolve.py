"""Select the output processors of a model from the engine argument, ``config.json`` and the registries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.messages import close_match
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry.choice import Choice
from vllm_mmout.registry.registration import NONE, Registration, default_name, import_processor, is_name, is_target

if TYPE_CHECKING:
    from vllm_mmout.registry.output_registry import OutputRegistry

KEY = "output_processor"
ENGINE = 'additional_config["mmout"]'
CONFIG = "config.json"
CONFIG_TABLE = 'the "mmout" table of config.json'
NOT_OPTIONS = frozenset({KEY, "model", "input"})
"""Keys of the ``mmout`` table in ``config.json`` that are not options of a processor."""


def resolve(
    registry: OutputRegistry,
    *,
    engine_table: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    architectures: Sequence[str],
    model_class: Callable[[], type | None],
    settings: Collection[str] = (),
    fallback: str | None = None,
) -> Choice | None:
    """Select the output processors of a model, and their options. Return None for a model without output processors.

    The places are 1. the engine argument, 2. ``config.json`` (``"output_processor"`` at its top or in its ``"mmout"``
    table), 3. the registration of the architecture, then that on the model's class. 1 and 2 hold a name, a list of
    names or a table alias -> name. A name is looked up among the model's own processors, then among the built-in and
    installed ones; or it is a path "pkg.mod:Class". In place of a name, an alias may have a table with
    ``output_processor`` and options of this processor alone. The name "none" switches the model's processors off.

    Options come from the ``"mmout"`` table of ``config.json``, overridden by those of the engine argument. If the
    engine argument names other processors than ``config.json``, options of ``config.json`` that these do not accept
    are ignored, since they were written for the others. ``fallback`` names the processor of a model without any.
    """
    engine, table = _table(engine_table, ENGINE), _table(config.get("mmout"), CONFIG_TABLE)
    engine_options = {key: value for key, value in engine.items() if key != KEY}
    config_options = {key: value for key, value in table.items() if key not in NOT_OPTIONS}
    own = ModelRegistrations(registry, architectures, model_class)

    by_engine = parse_names(engine.get(KEY), ENGINE)
    wanted = by_engine if by_engine is not None else _names_in_config(config, table)
    source = ENGINE if by_engine is not None else CONFIG
    if wanted is None:
        processors = {name: registration.load() for name, registration in own.defaults.items()}
        source = ", ".join(dict.fromkeys(registration.origin for registration in own.defaults.values()))
        if not processors and fallback is not None:
            processors = find_all((NamedProcessor(fallback, None),), registry, own, "default")
            source = "default: the model has none of its own"
    else:
        processors = find_all(wanted, registry, own, source)
    if not processors:
        _refuse_unused_options(engine_options, ENGINE, architectures, registry)
        if wanted is None:
            _refuse_unused_options(config_options, CONFIG_TABLE, architectures, registry)
        return None

    acceptances = {name: accepted_options(processor) for name, processor in processors.items()}
    check_options(engine_options, acceptances, settings, ENGINE)
    if by_engine is None:
        check_options(config_options, acceptances, settings, CONFIG_TABLE)
    own_options = {choice.alias: choice.options for choice in wanted or () if choice.alias is not None}
    for name, processor_options in own_options.items():
        check_options(processor_options, {name: acceptances[name]}, (), f"{KEY}[{name!r}] in {source}")
    options = {**config_options, **engine_options}
    return Choice(
        processors=processors,
        options=options_by_processor(options, acceptances, settings, own_options),
        settings={key: value for key, value in options.items() if key in settings},
        chosen_by=source,
    )


def _table(value: object, source: str) -> Mapping[str, Any]:
    """Return a table of options, empty for None. Raise OptionError if ``value`` is not a mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError(f'{source} must be a table such as {{"{KEY}": "segmentation"}}, got {value!r}')
    return value


def _names_in_config(config: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[NamedProcessor, ...] | None:
    """Return the processors that ``config.json`` or its ``mmout`` table names. Return None if no processor is named."""
    top, inner = config.get(KEY), table.get(KEY)
    if top is not None and inner is not None and top != inner:
        raise OptionError(f'config.json has two values of {KEY!r}: {top!r}, and {inner!r} in "mmout"; keep one')
    return parse_names(inner if top is None else top, CONFIG)


def _refuse_unused_options(
    options: Mapping[str, Any], source: str, architectures: Sequence[str], registry: OutputRegistry
) -> None:
    """Raise OptionError if ``options`` is not empty. A model without an output processor cannot use options."""
    if options:
        model = ", ".join(architectures) or "(no architectures)"
        raise OptionError(
            f"{source} sets {', '.join(map(str, options))}, but model {model} has no output processor; name one with"
            f" {KEY!r} (known: {', '.join(registry.known())}) or remove the options"
        )


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """Output processor that a configuration names, with its alias and its own options."""

    name: str
    """Registered name of the processor, its path "pkg.mod:Class", or a name with a prefix such as "io_plugin:NAME"."""
    alias: str | None
    """Name of the processor in requests, or None to use its registered name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Option values that the configuration sets for this processor only, by option name."""


def parse_names(value: object, source: str) -> tuple[NamedProcessor, ...] | None:
    """Parse the setting ``"output_processor"`` into `NamedProcessor` objects. Return None if the setting is missing.

    The default processor comes first. The setting "none" gives an empty tuple.

    ``source`` is the configuration that has the setting, for messages.
    """
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


def _wanted(alias: object, name: object, source: str) -> NamedProcessor:
    options: dict[str, Any] = {}
    if alias is not None and isinstance(name, Mapping):
        options = {key: value for key, value in name.items() if key != KEY}
        name = name.get(KEY)
    if not isinstance(name, str) or not name:
        raise OptionError(f'{KEY!r} in {source}: an output processor\'s name or "pkg.mod:Class" is text, got {name!r}')
    if name == NONE:
        raise OptionError(f"{KEY!r} in {source} has {NONE!r} among others; give it alone to switch processors off")
    if alias is None:
        return NamedProcessor(name, None)
    if not isinstance(alias, str) or not is_name(alias):
        raise OptionError(
            f"{KEY!r} in {source}: {alias!r} cannot be an alias; use letters, digits, '_', '-', '.'; not {NONE!r}"
        )
    return NamedProcessor(name, alias, options)


class ModelRegistrations:
    """Output processors registered for a model's architecture or class. The model class is imported only if needed."""

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
    def defaults(self) -> Mapping[str, Registration]:
        """Registered output processors by name, used if the configuration of the model does not name a processor.

        Registrations on the model's class apply only if its architecture has none.
        """
        return self._by_architecture or self._on_class

    @property
    def all(self) -> Mapping[str, Registration]:
        """All output processors that are registered for the model's architecture or class, by name."""
        return {**self._on_class, **self._by_architecture}


def find_all(
    wanted: Iterable[NamedProcessor], registry: OutputRegistry, own: ModelRegistrations, source: str
) -> dict[str, type[OutputProcessor]]:
    """Find the classes of the ``wanted`` processors. Return a dict from names to classes.

    ``own`` is searched before ``registry``. ``source`` is the configuration that names the processors, for messages.
    """
    processors: dict[str, type[OutputProcessor]] = {}
    for choice in wanted:
        explicit = is_target(choice.name)
        processor = (
            import_processor(choice.name) if explicit else _registered(choice.name, registry, own, source).load()
        )
        name = choice.alias or (default_name(processor) if explicit else choice.name)
        if name in processors:
            raise OptionError(
                f'{KEY!r} in {source} names {name!r} twice; give each a name of its own: {{"alias": "name", ...}}'
            )
        processors[name] = processor
    return processors


def _registered(name: str, registry: OutputRegistry, own: ModelRegistrations, source: str) -> Registration:
    registration = own.all.get(name) or registry.installed(name)
    if registration is None:
        known_names = [*own.all, *registry.known()]
        raise RegistrationError(
            f"unknown output processor {name!r} in {source}{close_match(name, known_names)} (of this model:"
            f" {', '.join(own.all) or 'none'}; installed: {', '.join(registry.known())}); or write its path"
            ' "pkg.mod:Class"'
        )
    return registration


@dataclass(frozen=True, slots=True)
class AcceptedOptions:
    """Keyword arguments that the constructor of an output processor accepts."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    """Names of the constructor arguments without a default value. The tuple is empty if the processor overrides
    ``from_config``, which can supply the values itself."""
    anything: bool

    def takes(self, option: str) -> bool:
        """Return whether the processor's constructor accepts the keyword argument ``option``."""
        return self.anything or option in self.names


def accepted_options(processor: type[OutputProcessor]) -> AcceptedOptions:
    """Return the keyword arguments that the constructor of an output processor accepts."""
    parameters = inspect.signature(processor).parameters.values()
    arguments = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    overrides_from_config = (
        getattr(processor.from_config, "__func__", None) is not vars(OutputProcessor)["from_config"].__func__
    )
    return AcceptedOptions(
        names=tuple(p.name for p in arguments),
        required=() if overrides_from_config else tuple(p.name for p in arguments if p.default is p.empty),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def check_options(
    options: Mapping[str, Any], acceptances: Mapping[str, AcceptedOptions], settings: Collection[str], source: str
) -> None:
    """Raise OptionError for an option that is unknown to the processors and is not one of the engine's ``settings``."""
    for option in options:
        if option in settings or any(accepted.takes(option) for accepted in acceptances.values()):
            continue
        lists = [f"of {name}: {', '.join(accepted.names) or '(no options)'}" for name, accepted in acceptances.items()]
        lists += [f"of the engine: {', '.join(settings)}"] if settings else []
        known_options = [*settings, *(name for accepted in acceptances.values() for name in accepted.names)]
        raise OptionError(
            f"unknown option {option!r} in {source}{close_match(option, known_options)} (known: {'; '.join(lists)})"
        )


def options_by_processor(
    options: Mapping[str, Any],
    acceptances: Mapping[str, AcceptedOptions],
    settings: Collection[str],
    own_options: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the options for each processor by name. A processor gets only the ``options`` that it accepts.

    ``own_options`` override ``options``. ``settings`` are left out. Raise OptionError if a required option is missing.
    """
    options_by_name = {}
    for name, accepted in acceptances.items():
        shared = {key: value for key, value in options.items() if accepted.takes(key) and key not in settings}
        options_by_name[name] = {**shared, **own_options.get(name, {})}
        missing = [key for key in accepted.required if key not in options_by_name[name]]
        if missing:
            raise OptionError(
                f"output processor {name!r} needs the option {', '.join(missing)}; set it in"
                ' additional_config["mmout"] or in the "mmout" table of config.json'
            )
    return options_by_name
