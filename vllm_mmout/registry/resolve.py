"""Which output processors serve a model: engine argument, then ``config.json``, then the registries; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import OptionError
from vllm_mmout.registry.choice import Choice
from vllm_mmout.registry.lookup import KEY, ModelsOwn, Wanted, find_all, parse_names
from vllm_mmout.registry.options import check_options, deal, taken_by

if TYPE_CHECKING:
    from vllm_mmout.registry.outputs import OutputRegistry

ENGINE = 'additional_config["mmout"]'
CONFIG = "config.json"
CONFIG_TABLE = 'the "mmout" table of config.json'
NOT_OPTIONS = frozenset({KEY, "model", "input"})
"""Keys of the ``mmout`` table in ``config.json`` that are no options ("model" names the model's class)."""


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
    """Find the output processors of a model; the first of three that names any wins.

    1. the engine argument, 2. ``config.json`` (``"output_processor"``, or that key in its ``"mmout"`` table), 3. the
    registration of the architecture, then that on the model's class. 1 and 2 give a name, a list of names or a table
    alias -> name; a name is looked up among the model's own, then the built-in and installed ones; or it is a path
    "pkg.mod:Class". The name "none" switches the model's processors off.

    Options come from the ``"mmout"`` table of ``config.json``, overlaid by those of the engine argument. Where the
    engine argument names other processors than ``config.json``, options of ``config.json`` that these do not take are
    left out: they were written for the others.
    """
    engine, table = _table(engine_table, ENGINE), _table(config.get("mmout"), CONFIG_TABLE)
    engine_options = {key: value for key, value in engine.items() if key != KEY}
    config_options = {key: value for key, value in table.items() if key not in NOT_OPTIONS}
    own = ModelsOwn(registry, architectures, model_class)

    by_engine = parse_names(engine.get(KEY), ENGINE)
    wanted = by_engine if by_engine is not None else _wanted_by_config(config, table)
    source = ENGINE if by_engine is not None else CONFIG
    if wanted is None:
        processors = {name: registration.load() for name, registration in own.first.items()}
        source = ", ".join(dict.fromkeys(registration.origin for registration in own.first.values()))
        if not processors and fallback is not None:
            processors = find_all((Wanted(fallback, None),), registry, own, "default")
            source = "default: the model has none of its own"
    else:
        processors = find_all(wanted, registry, own, source)
    if not processors:
        _refuse_useless(engine_options, ENGINE, architectures, registry)
        if wanted is None:
            _refuse_useless(config_options, CONFIG_TABLE, architectures, registry)
        return None

    taken = {name: taken_by(processor) for name, processor in processors.items()}
    check_options(engine_options, taken, settings, ENGINE)
    if by_engine is None:
        check_options(config_options, taken, settings, CONFIG_TABLE)
    options = {**config_options, **engine_options}
    return Choice(
        processors=processors,
        options=deal(options, taken, settings),
        settings={key: value for key, value in options.items() if key in settings},
        chosen_by=source,
    )


def _table(value: object, source: str) -> Mapping[str, Any]:
    """``value`` as a table of options; absent counts as empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError(f'{source} must be a table such as {{"{KEY}": "segmentation"}}, got {value!r}')
    return value


def _wanted_by_config(config: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[Wanted, ...] | None:
    """What ``config.json`` asks for, at its top or in its ``mmout`` table."""
    top, inner = config.get(KEY), table.get(KEY)
    if top is not None and inner is not None and top != inner:
        raise OptionError(f'config.json has two values of {KEY!r}: {top!r}, and {inner!r} in "mmout"; keep one')
    return parse_names(inner if top is None else top, CONFIG)


def _refuse_useless(
    options: Mapping[str, Any], source: str, architectures: Sequence[str], registry: OutputRegistry
) -> None:
    """Raise where options were set for a model that has no output processor to take them."""
    if options:
        model = ", ".join(architectures) or "(no architectures)"
        raise OptionError(
            f"{source} sets {', '.join(map(str, options))}, but model {model} has no output processor; name one with"
            f" {KEY!r} (known: {', '.join(registry.known())}) or remove the options"
        )
