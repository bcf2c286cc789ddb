"""Check options that several processors share: numbers, switches, names and colours of classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError, ReduceError

PaletteOption: TypeAlias = Sequence[str | Sequence[int]]
"""Colour of each class, as "#rrggbb" or three integers from 0 to 255."""

_SAMPLES = 3


class ModelClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """Class that a model can detect, such as "water", with its colour in pictures."""

    id: int
    """Index of the class in the model, from 0."""
    name: str | None = None
    """Name of the class, or None."""
    colour: str | None = None
    """Colour of the class in pictures, as "#rrggbb". None if the class lacks a colour."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of a model's classes, looked up by class id."""

    names: tuple[str, ...] | None = None
    """Names of the classes from 0, as set by the option ``class_names``. None if the option is not set.

    The number of names must be the model's number of classes."""
    by_id: Mapping[int, str] = field(default_factory=dict)
    """Maps class ids to names, as in ``id2label`` of config.json. Classes may be missing."""

    def of(self, number: int) -> str:
        """Return the name of the class ``number``, or the number as text if the name is unknown."""
        if self.names is not None and 0 <= number < len(self.names):
            return self.names[number]
        return self.by_id.get(number, str(number))

    @property
    def classes(self) -> tuple[ModelClass, ...]:
        """Classes of the model that have a known name, by ascending id."""
        names = self.by_id if self.names is None else dict(enumerate(self.names))
        return tuple(ModelClass(number, names[number]) for number in sorted(names))

    def check_count(self, classes: int) -> None:
        """Raise ReduceError if the option ``class_names`` is set and the number of names is not ``classes``."""
        if self.names is not None and len(self.names) != classes:
            raise ReduceError(
                f"class_names has {len(self.names)} entries, the model emits {classes} classes; give one entry a class"
            )

    def or_those_of(self, config: Mapping[str, Any]) -> Labels:
        """Return ``self`` if the option ``class_names`` is set. Otherwise return the labels of ``config.json``.

        ``config`` is the model's config.json, whose entry ``id2label`` maps class ids to names. If the entry is
        missing, return ``self``.
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
    """Return ``names`` as a tuple. Raise OptionError if a name is empty or occurs twice.

    ``option`` is the name of the option, and ``named`` the word for an item, such as "class", in messages.
    """
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise OptionError(f"{option} must be a list of names, one a {named}, got {names!r}")
    if len(set(names)) < len(names):
        raise OptionError(f"{option} names a {named} twice: {list(names)}")
    return tuple(names)


def parse_palette(palette: object) -> NDArray[np.uint8]:
    """Convert a list of colours, as "#rrggbb" or three integers each, to uint8 [classes, 3].

    Raise OptionError if a colour is malformed or the list is empty.
    """
    if not isinstance(palette, list | tuple | np.ndarray) or not len(palette):
        raise OptionError(f"palette must be a list of colours, one a class, got {palette!r}")
    return np.array([_parse_colour(colour, place) for place, colour in enumerate(palette)], np.uint8)


def _parse_colour(colour: object, place: int) -> tuple[int, ...]:
    if isinstance(colour, str) and re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
        return tuple(bytes.fromhex(colour[1:]))
    if isinstance(colour, list | tuple | np.ndarray):
        samples = tuple(int(sample) for sample in colour if _is_byte(sample))
        if len(samples) == len(colour) == _SAMPLES:
            return samples
    raise OptionError(f'palette[{place}] must be "#rrggbb" or three integers from 0 to 255, got {colour!r}')


def _is_byte(sample: object) -> bool:
    return isinstance(sample, int | np.integer) and not isinstance(sample, bool) and int(sample) in range(256)


def checked_count(name: str, value: object) -> int:
    """Return the value of option ``name`` if it is an integer of 1 or more. Otherwise raise OptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be an integer of 1 or more, got {value!r}")
    return value


def checked_part(name: str, value: object) -> float:
    """Return the value of option ``name`` if it is a fraction from 0 to 1. Otherwise raise OptionError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or not 0 <= value <= 1:
        raise OptionError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def checked_switch(name: str, value: object) -> bool:
    """Return the value of option ``name`` if it is True or False. Otherwise raise OptionError."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")
    return value
