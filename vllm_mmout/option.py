"""Parse and check request options. Each option is declared as a field of a msgspec Struct.

A field's type may be ``Annotated`` with a ``msgspec.Meta``. Its description is published in ``/openapi.json`` and
``--help``, and its bounds are checked. ``extra`` of a Meta may hold ``unit`` (of a number, for messages), ``why``
(reason why there is only one choice), ``spelling`` (function that returns the usual spelling of a choice), ``metavar``
(for ``--help``), ``flag`` (command line flag, if it differs from the option's name), ``bare`` (value of the command
line flag without a value), ``verbatim`` (whether to keep blanks around a text), ``nan`` (whether to accept JSON's texts
"nan" and "inf"), ``parse`` (function that checks JSON or its text, in place of the type), ``read`` (function that reads
a text of the command line, which may name a file) and ``longest`` (largest number of characters of a text).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.messages import shown

_LONGEST: Final = 8192
"""Default for the maximum number of characters of a text option."""
_LARGEST: Final = 2**31 - 1
"""Maximum integer in an option that does not set its own maximum. A larger pixel count would overflow in numpy."""
_NO_NUMBERS: Final = frozenset({"nan", "inf", "-inf"})


@dataclass(frozen=True)
class Option:
    """Request option: its name, type, default value and description."""

    name: str
    declared: Any
    """Declared type of the option without None. It may be ``Annotated``."""
    default: Any
    meta: msgspec.Meta

    @cached_property
    def hint(self) -> Any:
        """Python type that values are converted to. For a ``Literal``, it is the type of the choices."""
        hint = _plain(self.declared)
        return type(get_args(hint)[0]) if get_origin(hint) is Literal else hint

    @property
    def extra(self) -> Mapping[str, Any]:
        """Properties of the option beyond the fields of `msgspec.Meta`, such as its unit."""
        return self.meta.extra or {}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the option."""
        schema: dict[str, Any] = _simple(msgspec.json.schema(Annotated[self.declared, self.meta]))
        return schema

    @property
    def choices(self) -> tuple[Any, ...]:
        """Allowed values. Empty if every value of the type is allowed."""
        return get_args(self.declared) if get_origin(self.declared) is Literal else tuple(self.schema.get("enum", ()))

    @property
    def longest(self) -> int:
        """Maximum number of characters of the option's value, if the value is a text."""
        return self.meta.max_length or int(self.extra.get("longest", _LONGEST))

    @cached_property
    def words(self) -> str:
        """Description of the option's type for error messages, such as "a list of numbers"."""
        return " or ".join(map(_type_name, _members(self.hint)))

    @cached_property
    def items(self) -> tuple[Any, ...] | None:
        """Types of the items of a list. None if the option does not accept a list."""
        lists = [member for member in _members(self.hint) if get_origin(member) is tuple]
        return get_args(lists[0]) if lists else None

    @cached_property
    def alone(self) -> bool:
        """True if the option accepts a value on its own. False if values must be in a list or a table."""
        return any(get_origin(member) not in {tuple, dict} for member in _members(self.hint))

    def from_texts(self, texts: Mapping[str, Sequence[str]]) -> Any:
        """Parse the option's value from the texts of one or more form fields. Return None if the field is blank.

        A list may be sent as ``name[]`` once for each value, as OpenAI's clients do, as ``name`` several times, or as
        one text with commas or in JSON; a table is sent as ``name[key]``. ``texts`` maps the suffix of the field's
        name, "", "[]" or "[key]", to its values.
        """
        for text in (text for several in texts.values() for text in several):
            self._check_length(text)
        name, plain = self.name, texts.get("", ())
        if list(texts) == [""]:
            if len(plain) == 1:
                return self.from_text(plain[0])
            if self.items is None:
                raise self._error(f"{name} is given {len(plain)} times; give it once")
            return self._converted(self._items(plain), strict=False)
        if list(texts) == ["[]"] and self.items is not None:
            return self._converted(self._items(texts["[]"]), strict=False)
        keys = [key[1:-1] for key, several in texts.items() if re.fullmatch(r"\[\w+\]", key) and len(several) == 1]
        if len(keys) == len(texts) and any(get_origin(member) is dict for member in _members(self.hint)):
            return self._converted({key: texts[f"[{key}]"][0] for key in keys}, strict=False)
        sent = ", ".join(f"{name}{suffix}"[:60] for suffix in list(texts)[:4])
        several = f"; send {name}[] once for each value" if self.items is not None else ""
        raise self._error(f"{name} is sent as {sent}, but must be {self.words}{several}")

    def from_text(self, text: str) -> Any:
        """Parse the option from a text. A list is written with commas or as JSON."""
        text = text if self.extra.get("verbatim") else text.strip()
        if not text:
            return None
        value: Any = text
        if "parse" in self.extra:
            return self.extra["parse"](text)
        if self.items is not None:
            if text[0] in "[{":
                try:
                    value = msgspec.json.decode(text)
                except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
                    raise self._wrong(text) from None
            elif "," in text or not self.alone:
                value = self._items([item.strip() for item in text.split(",")])
        return self._converted(value, strict=False)

    def from_json(self, value: Any) -> Any:
        """Parse the option from the value of a field in a JSON object."""
        if isinstance(value, str):
            self._check_length(value)
            if not value and self.hint is str and not self.choices:
                return None
            if self.extra.get("nan") and value.lower() in _NO_NUMBERS:
                return float(value)
        if "parse" in self.extra:
            return self.extra["parse"](value)
        return self._converted(value, strict=True)

    def checked(self, value: Any) -> Any:
        """Check that a value is allowed for the option, and return the value. Raise OptionError if it is not allowed.

        Allowed values are the option's choices, or numbers within its bounds. A choice is returned in its usual
        spelling.
        """
        if self.choices:
            value = self.extra.get("spelling", str)(value) if self.hint is str else value
            if value not in self.choices:
                reason = self.extra.get("why")
                choices = (" or " if reason else ", ").join(map(str, self.choices))
                raise self._error(
                    f"{self.name} must be {'' if reason else 'one of '}{choices}, got {shown(value)}"
                    f"{f': {reason}' if reason else ''}"
                )
        elif self.bounded and not (self.meta.ge <= value < math.inf and value <= (self.meta.le or math.inf)):
            unit = f" {self.extra['unit']}" if "unit" in self.extra else ""
            most = "or more" if self.meta.le is None else f"to {self.meta.le}"
            raise self._error(f"{self.name} must be {self.meta.ge} {most}{unit}, got {value}")
        return value

    @property
    def bounded(self) -> bool:
        """True if the option is a number with bounds."""
        return self.meta.ge is not None

    def _check_length(self, text: str) -> None:
        if len(text) > self.longest:
            raise self._error(f"{self.name} has {len(text)} characters, and may have {self.longest}; shorten it")

    def _items(self, texts: Sequence[str]) -> list[str | int]:
        """Convert texts to the items of a list. "12" becomes the integer 12 if items may be integers or names."""
        if not all(texts):
            raise self._error(f"{self.name} has an empty value in {shown(list(texts))}; leave it out")
        if (int | str) not in (self.items or ()):
            return list(texts)
        return [int(text) if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) else text for text in texts]

    def _converted(self, value: Any, *, strict: bool) -> Any:
        try:
            converted = msgspec.convert(value, self.hint, strict=strict)
        except (msgspec.ValidationError, RecursionError):
            raise self._wrong(value) from None
        numbers = (
            converted
            if isinstance(converted, tuple)
            else converted.values()
            if isinstance(converted, dict)
            else (converted,)
        )
        if self.meta.le is None and any(isinstance(number, int) and abs(number) > _LARGEST for number in numbers):
            raise self._wrong(value)
        return converted

    def _wrong(self, value: Any) -> OptionError:
        return self._error(f"{self.name} must be {self.words}, got {shown(value)}")

    def _error(self, message: str) -> OptionError:
        return OptionError(message, param=self.name)


def said(description: str, *, ge: float | None = None, le: float | None = None, **extra: Any) -> msgspec.Meta:
    """Build the `msgspec.Meta` of an option from the option's description, bounds and other properties.

    ``extra`` may also hold ``max_length``, ``choices`` and ``schema``, which is added to the option's JSON schema.
    """
    limits: dict[str, Any] = {"ge": ge, "le": le, "max_length": extra.pop("max_length", None)}
    if "choices" in extra:
        limits["extra_json_schema"] = {"enum": list(extra.pop("choices"))}
    if "schema" in extra:
        limits["extra_json_schema"] = extra.pop("schema")
    return msgspec.Meta(description=description, extra=extra, **limits)


def options_of(declared: type[msgspec.Struct], *, without: Iterable[str] = ()) -> dict[str, Option]:
    """Return the options that the fields of a msgspec Struct declare, as a dict by field name."""
    hints = get_type_hints(declared, include_extras=True)
    left_out = frozenset(without)
    return {
        field.name: _option(field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(declared)
        if field.name not in left_out
    }


def _option(name: str, hint: Any, default: Any) -> Option:
    meta = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, meta = get_args(hint)[:2]
    kinds: list[Any] = []
    for member in _members(hint):
        # A dataclass of integers may be given as a list of them or as a table.
        kinds += (
            [tuple.__class_getitem__((int,) * len(fields(member))), dict[str, int]]
            if is_dataclass(member)
            else [member]
        )
    return Option(name, Union[tuple(kinds)], default, meta)  # noqa: UP007 - the members are known only at run time


def _members(hint: Any) -> list[Any]:
    """Return the types of a union without None."""
    union = get_origin(hint) in {Union, UnionType}
    return [member for member in get_args(hint) if member is not NoneType] if union else [hint]


def _plain(hint: Any) -> Any:
    """Remove every ``Annotated`` from a type, even from the types inside a tuple or a union."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _plain(parts[0])
    if origin is Literal or not parts:
        return hint
    plain = tuple(part if part is ... else _plain(part) for part in parts)
    return Union[plain] if origin in {Union, UnionType} else origin[plain]  # noqa: UP007 - known only at run time


def _type_name(hint: Any) -> str:
    """Return the name of a type in error messages, such as "whole number" for ``int``."""
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        if others != [...] and len({first, *others}) > 1:
            return f"a list of {' and '.join(f'a {_type_name(member)}' for member in (first, *others))}"
        items = " or ".join(f"{_type_name(item)}s" for item in get_args(first) or (first,))
        return f"a list of {items}" if others == [...] else f"{1 + len(others)} {items}"
    if get_origin(hint) is dict:
        return "a table of row, col, height, width"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    return {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "an object"}[hint]


def _simple(schema: Any) -> Any:
    """Simplify a JSON schema for older client generators, which do not know the keyword ``prefixItems``.

    ``items`` replaces ``prefixItems``, the schemas of the items of a fixed-length list. Items of several types become
    an ``anyOf``.
    """
    if isinstance(schema, list):
        return [_simple(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {name: _simple(part) for name, part in schema.items() if name != "prefixItems"}
    items = schema.get("prefixItems", [])
    kinds = [kind for place, kind in enumerate(items) if kind not in items[:place]]
    return simplified | ({"items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}} if kinds else {})
