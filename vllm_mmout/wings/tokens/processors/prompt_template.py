"""Parse prompt templates, which add text around a client's text for a model that generates tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Literal, Self, TypeAlias

from vllm_mmout.errors import OptionError

Modality: TypeAlias = Literal["image", "audio"]


FIELDS: Final = {"image": ("prompt", "rows", "columns"), "audio": ("input", "voice", "instructions")}
"""Names of the placeholders that a prompt template may contain, by modality. The first name is the placeholder for the
client's text, which every template must contain."""
_NUMBERS: Final = ("rows", "columns")
_PART: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[a-z]+)(?::(?P<default>[^{}]*))?\}|[{}]")


@dataclass(frozen=True, slots=True)
class Field:
    """A placeholder in a prompt template, which a client's value replaces."""

    name: str
    default: str | None
    """Text that is inserted in place of the placeholder if the client does not send a value. None means no text."""


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt text with placeholders for a client's values.

    A placeholder is written ``{name}``, or ``{name:default}`` with the text for clients that give no value. A brace
    that does not belong to a placeholder is doubled.
    """

    parts: tuple[str | Field, ...]

    @classmethod
    def parse(cls, text: object, modality: Modality) -> Self:
        """Parse a template. If ``text`` is None, return a template that inserts the client's text and nothing else."""
        place_names = FIELDS[modality]
        if text is None:
            return cls((Field(place_names[0], None),))
        if not isinstance(text, str):
            raise _wrong(f"prompt must be a text with {{{place_names[0]}}} in it, got {text!r}")
        parts: list[str | Field] = []
        end = 0
        for match in _PART.finditer(text):
            parts.append(text[end : match.start()])
            parts.append(_placeholder_of(match, place_names))
            end = match.end()
        parts.append(text[end:])
        template = cls(tuple(_joined(parts)))
        if place_names[0] not in template.names:
            raise _wrong(f"prompt {text!r} has no place for the client's text; add {{{place_names[0]}}} to it")
        return template

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of the template's placeholders, such as "prompt" or "rows"."""
        return frozenset(part.name for part in self.parts if isinstance(part, Field))

    def default(self, name: str) -> str | None:
        """Return the default text of the placeholder ``name``, or None without a default."""
        defaults = (part.default for part in self.parts if isinstance(part, Field) and part.name == name)
        return next((default for default in defaults if default is not None), None)

    def filled_pieces(self, values: Mapping[str, str]) -> list[tuple[str, bool]]:
        """Return the prompt as pairs (text, whether the text is a client's value)."""
        return [
            (part, False)
            if isinstance(part, str)
            else (values[part.name], True)
            if part.name in values
            else (self.default(part.name) or "", False)
            for part in self.parts
        ]


def _placeholder_of(match: re.Match[str], place_names: tuple[str, ...]) -> str | Field:
    """Return the placeholder or literal brace that ``match`` found in a template. Raise OptionError for other matches.

    A placeholder's name must be in ``place_names``, and a literal brace must be doubled.
    """
    name, default = match["name"], match["default"]
    if name is None:
        if len(match[0]) == 2:
            return match[0][0]
        raise _wrong(
            f"prompt has a single {match[0]!r} at {match.start()}; double it, or name one of {_listed(place_names)}"
        )
    if name not in place_names:
        raise _wrong(
            f"prompt has the unknown place {match[0]} (known: {_listed(place_names)}); double braces that are text"
        )
    if name in _NUMBERS and default is not None and not re.fullmatch(r"[1-9]\d{0,4}", default, re.ASCII):
        raise _wrong(f"the default of {{{name}}} must be a whole number above 0, got {match[0]}")
    return Field(name, default)


def _joined(parts: list[str | Field]) -> list[str | Field]:
    """Join adjacent literal texts of a prompt template, and drop empty texts."""
    joined: list[str | Field] = []
    for kind, run in groupby(filter(None, parts), key=type):
        items: list[Any] = list(run)
        joined += ["".join(items)] if kind is str else items
    return joined


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _wrong(message: str) -> OptionError:
    return OptionError(message, param="prompt")
