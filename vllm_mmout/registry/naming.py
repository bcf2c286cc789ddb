"""The value of ``"output_processor"`` in an engine argument or ``config.json``: a name, a list or a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mmout.errors import OptionError
from vllm_mmout.registry.registration import NONE, is_name

KEY = "output_processor"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One processor that is asked for."""

    name: str
    """Its registered name, a path "pkg.mod:Class", or "io_plugin:NAME"."""
    alias: str | None
    """What requests shall call it; None: its own name."""


def parse_names(value: object, source: str) -> tuple[Wanted, ...] | None:
    """Read the value of ``"output_processor"``.

    Args:
        value: a name, a list of names, or a table alias -> name; None counts as not set.
        source: where it stands, in words for people.

    Returns:
        What is asked for, the default first; empty for "none"; None where it is not set.

    Raises:
        OptionError: it is none of these, is empty, or has "none" among others.

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
