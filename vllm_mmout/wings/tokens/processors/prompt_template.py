"""PromptTemplate: the text that a server puts around what a client asks of a model that generates tokens."""

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
"""What a template of each modality may hold; the first is what the client's text goes in for."""
_NUMBERS: Final = ("rows", "columns")
_PART: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[a-z]+)(?::(?P<default>[^{}]*))?\}|[{}]")


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a template."""

    name: str
    default: str | None
    """What goes in where a client gives nothing."""


@dataclass(frozen=True)
class PromptTemplate:
    """A text with places.

    A place is written ``{name}``, or ``{name:default}`` with what goes in where a client gives nothing; a brace that is
    none is doubled.
    """

    parts: tuple[str | Field, ...]

    @classmethod
    def parse(cls, text: object, modality: Modality) -> Self:
        """Read a template; None: the client's text alone."""
        known = FIELDS[modality]
        if text is None:
            return cls((Field(known[0], None),))
        if not isinstance(text, str):
            raise _wrong(f"prompt must be a text with {{{known[0]}}} in it, got {text!r}")
        parts: list[str | Field] = []
        end = 0
        for match in _PART.finditer(text):
            parts.append(text[end : match.start()])
            parts.append(_part(match, known))
            end = match.end()
        parts.append(text[end:])
        made = cls(tuple(_joined(parts)))
        if known[0] not in made.names:
            raise _wrong(f"prompt {text!r} has no place for what a client asks; put {{{known[0]}}} there")
        return made

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its places."""
        return frozenset(part.name for part in self.parts if isinstance(part, Field))

    def default(self, name: str) -> str | None:
        """What goes in for a name that a client does not give; None where nothing does."""
        defaults = (part.default for part in self.parts if isinstance(part, Field) and part.name == name)
        return next((default for default in defaults if default is not None), None)

    def filled(self, values: Mapping[str, str]) -> list[tuple[str, bool]]:
        """The pieces of a prompt, each with whether it came from outside; what is not given has its default."""
        return [
            (part, False)
            if isinstance(part, str)
            else (values[part.name], True)
            if part.name in values
            else (self.default(part.name) or "", False)
            for part in self.parts
        ]


def _part(match: re.Match[str], known: tuple[str, ...]) -> str | Field:
    """What a match stands for: a brace, or a place."""
    name, default = match["name"], match["default"]
    if name is None:
        if len(match[0]) == 2:
            return match[0][0]
        raise _wrong(f"prompt has a single {match[0]!r} at {match.start()}; double it, or name one of {_listed(known)}")
    if name not in known:
        raise _wrong(f"prompt has the unknown place {match[0]} (known: {_listed(known)}); double braces of the text")
    if name in _NUMBERS and default is not None and not re.fullmatch(r"[1-9]\d{0,4}", default, re.ASCII):
        raise _wrong(f"the default of {{{name}}} must be a whole number above 0, got {match[0]}")
    return Field(name, default)


def _joined(parts: list[str | Field]) -> list[str | Field]:
    """The same with neighbouring texts as one, and without empty ones."""
    joined: list[str | Field] = []
    for kind, run in groupby(filter(None, parts), key=type):
        found: list[Any] = list(run)
        joined += ["".join(found)] if kind is str else found
    return joined


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _wrong(message: str) -> OptionError:
    return OptionError(message, param="prompt")
