"""What the fields of a request are made of: types from texts of forms, and from values of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from vllm_mmout.params import LOCAL_ONLY, OutputParams
from vllm_mmout.raster.window import Window
from vllm_mmout.serving.errors import ApiError

OPTIONS: Final = tuple(
    name for name in OutputParams.__struct_fields__ if name not in LOCAL_ONLY | {"part", "partial_images"}
)
"""The options of a request that a client may set beside OpenAI's fields."""

_LONGEST = 8192
_LENGTHS = {"prompt": 32_000, "user": 512, "safety_identifier": 512, "model": 512}
"""Characters of a text."""

_SHOWN = 100
"""Characters of a value in a message."""

_LARGEST = 2**31 - 1
"""No count of pixels or bands is larger, and larger ones overflow in numpy."""

_SIDES = tuple[int, int, int, int] | dict[str, int] | None
_OPTION_HINTS = get_type_hints(OutputParams)
_HINTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("model", "prompt", "user", "safety_identifier", "output_format", "background"), str | None),
    **dict.fromkeys(("response_format", "size", "quality"), str | None),
    **dict.fromkeys(("n", "output_compression", "partial_images"), int | None),
    "stream": bool | None,
    # The params make a window of either.
    **{name: _SIDES if Window in get_args(_OPTION_HINTS[name]) else _OPTION_HINTS[name] for name in OPTIONS},
}
FIELDS: Final = tuple(_HINTS)
"""All fields but images."""


def from_texts(name: str, texts: Mapping[str, Sequence[str]]) -> Any:
    """The value of a field of a form.

    A list comes as ``name[]`` once a value, as OpenAI's clients send it, as ``name`` several times, or as one text with
    commas or in JSON; a table as ``name[key]``.

    Args:
        name: one of `FIELDS`.
        texts: what was sent, by what stood behind the name: "", "[]", "[key]".

    Returns:
        None for a text that is empty: nothing was filled in.

    Raises:
        ApiError: it is nothing of the field's type (400).

    """
    for text in (text for several in texts.values() for text in several):
        check_length(name, text)
    parts = _Parts.of(_HINTS[name])
    if list(texts) == [""]:
        plain = texts[""]
        if len(plain) == 1:
            return _from_text(name, plain[0] if name == "prompt" else plain[0].strip(), parts)
        if parts.items is None:
            raise ApiError(400, f"{name} is given {len(plain)} times; give it once", param=name)
        return _converted(name, _items(name, plain, parts), parts, strict=False)
    if list(texts) == ["[]"] and parts.items is not None:
        return _converted(name, _items(name, texts["[]"], parts), parts, strict=False)
    keys = [suffix[1:-1] for suffix, several in texts.items() if re.fullmatch(r"\[\w+\]", suffix) and len(several) == 1]
    if parts.table and len(keys) == len(texts):
        return _converted(name, {key: texts[f"[{key}]"][0] for key in keys}, parts, strict=False)
    sent = ", ".join(f"{name}{suffix}"[:60] for suffix in list(texts)[:4])
    several = f"; send {name}[] once a value" if parts.items is not None else ""
    raise ApiError(400, f"{name} is sent as {sent}, and must be {parts.words}{several}", param=name)


def converted(name: str, value: Any, hint: Any, *, bounded: bool = True) -> Any:
    """A value of JSON as one of a type.

    Args:
        name: of the field, for messages.
        value: what was sent.
        hint: of numbers, texts, lists of them as tuples; None among them.
        bounded: whether numbers of more than 31 bits are refused.

    Raises:
        ApiError: it is nothing of the type (400).

    """
    return _converted(name, value, _Parts.of(hint), strict=True, bounded=bounded)


def from_json(name: str, value: Any) -> Any:
    """The value of a field of a JSON body.

    Args:
        name: one of `FIELDS`.
        value: what was sent.

    Returns:
        None for a text that says nothing.

    Raises:
        ApiError: it is nothing of the field's type (400).

    """
    if isinstance(value, str):
        check_length(name, value)
        if not value and name in _LENGTHS:
            return None
        # JSON has no such numbers.
        if name == "nodata" and value.lower() in {"nan", "inf", "-inf"}:
            return float(value)
    return _converted(name, value, _Parts.of(_HINTS[name]), strict=True)


def shown(value: Any) -> str:
    """A value as a message shows it; of a large one no more than the begin is looked at."""
    text = ""
    for piece in _written(value):
        text += piece
        if len(text) > _SHOWN:
            return f"{text[:_SHOWN]}..."
    return text


def _written(value: Any) -> Iterator[str]:
    """What `repr` gives, piece by piece."""
    if isinstance(value, str):
        yield repr(value[: _SHOWN + 1])
    elif isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            yield ", " if place else ""
            yield from _written(item)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for place, (name, item) in enumerate(value.items()):
            yield f"{', ' if place else ''}{shown(name)}: "
            yield from _written(item)
        yield "}"
    else:
        yield repr(value)


class _Parts(msgspec.Struct, frozen=True):
    """What a type takes."""

    hint: Any
    words: str
    """For messages."""
    items: Any
    """Types of a list's values; None: it takes no list."""
    alone: bool
    """Whether one value is taken without a list."""
    table: bool

    @classmethod
    def of(cls, hint: Any) -> _Parts:
        union = get_origin(hint) in {Union, UnionType}
        members = [member for member in get_args(hint) if member is not NoneType] if union else [hint]
        lists = [member for member in members if get_origin(member) is tuple]
        table = any(get_origin(member) is dict for member in members)
        alone = len(members) > len(lists) + table
        return cls(hint, " or ".join(map(_words, members)), get_args(lists[0]) if lists else None, alone, table)


def _words(hint: Any) -> str:
    """A type in a client's words."""
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        items = " or ".join(f"{_words(item)}s" for item in get_args(first) or (first,))
        return f"a list of {items}" if others == [...] else f"{1 + len(others)} {items}"
    if get_origin(hint) is dict:
        return "a table of row, col, height, width"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}[hint]


def _from_text(name: str, text: str, parts: _Parts) -> Any:
    if not text:
        return None
    value: Any = text
    if parts.items is not None:
        if text[0] in "[{":
            try:
                value = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
                raise _wrong(name, text, parts) from None
        elif "," in text or not parts.alone:
            value = _items(name, [item.strip() for item in text.split(",")], parts)
    return _converted(name, value, parts, strict=False)


def _items(name: str, texts: Sequence[str], parts: _Parts) -> list[str | int]:
    """The values of a list: a number where both numbers and names are taken."""
    if not all(texts):
        raise ApiError(400, f"{name} has an empty value in {shown(list(texts))}; leave it out", param=name)
    if (int | str) not in parts.items:
        return list(texts)
    return [int(text) if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) else text for text in texts]


def _converted(name: str, value: Any, parts: _Parts, *, strict: bool, bounded: bool = True) -> Any:
    try:
        found = msgspec.convert(value, parts.hint, strict=strict)
    except (msgspec.ValidationError, RecursionError):
        raise _wrong(name, value, parts) from None
    numbers = found if isinstance(found, tuple) else found.values() if isinstance(found, dict) else (found,)
    if bounded and any(isinstance(number, int) and abs(number) > _LARGEST for number in numbers):
        raise _wrong(name, value, parts)
    return found


def _wrong(name: str, value: Any, parts: _Parts) -> ApiError:
    return ApiError(400, f"{name} must be {parts.words}, got {shown(value)}", param=name)


def check_length(name: str, text: str, most: int | None = None) -> None:
    """Refuse a text that is too long.

    Args:
        name: of the field.
        text: what was sent.
        most: characters that it may have; None: those of the field.

    Raises:
        ApiError: it has more (400).

    """
    most = _LENGTHS.get(name, _LONGEST) if most is None else most
    if len(text) > most:
        raise ApiError(400, f"{name} has {len(text)} characters, and may have {most}; shorten it", param=name)
