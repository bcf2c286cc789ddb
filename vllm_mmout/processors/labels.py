"""Names of classes: as an option gives them, or as a model's config.json does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_mmout.errors import OptionError, ReduceError


@dataclass(frozen=True, slots=True)
class Labels:
    """The name of each class id."""

    names: tuple[str, ...] | None = None
    """One a class from 0, as the option ``class_names`` says; then the model must have as many classes."""
    by_id: Mapping[int, str] = field(default_factory=dict)
    """What config.json says, which need not name every class."""

    def of(self, number: int) -> str:
        """The name of a class; its number where it has none."""
        if self.names is not None and 0 <= number < len(self.names):
            return self.names[number]
        return self.by_id.get(number, str(number))

    def check_count(self, classes: int) -> None:
        """Refuse names of another number of classes than the model emits.

        Raises:
            ReduceError: ``class_names`` has more or fewer entries.

        """
        if self.names is not None and len(self.names) != classes:
            raise ReduceError(
                f"class_names has {len(self.names)} entries, the model emits {classes} classes; give one entry a class"
            )

    def or_those_of(self, config: Mapping[str, Any]) -> Labels:
        """These, or without names those that config.json gives as ``id2label``.

        Raises:
            OptionError: ``id2label`` is no mapping from class ids.

        """
        table = config.get("id2label")
        if self.names is not None or table is None:
            return self
        try:
            return Labels(by_id={int(number): str(name) for number, name in table.items()})
        except (AttributeError, TypeError, ValueError):
            raise OptionError(
                f'id2label in config.json must map class ids to names, as {{"0": "land"}}, got {table!r}; mend it, or'
                " set class_names"
            ) from None


def checked_names(names: object, option: str = "class_names", named: str = "class") -> tuple[str, ...]:
    """The names of an option, checked.

    Args:
        names: what the option was set to.
        option: its name, for messages.
        named: what has the names, for messages.

    Raises:
        OptionError: it is no list of names, or has a name twice.

    """
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise OptionError(f"{option} must be a list of names, one a {named}, got {names!r}")
    if len(set(names)) < len(names):
        raise OptionError(f"{option} names a {named} twice: {list(names)}")
    return tuple(names)
