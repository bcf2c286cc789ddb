"""Check the fields of a token layout: their names, their types, and contradictions between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.layouts.layout_fields import LayoutFields

_MAX_CODES = 1 << 22
"""Maximum product of the largest codebook size and the number of positions in a frame.

No model has a vocabulary of this size."""

_MAX_TOKEN_ID = (1 << 31) - 1
"""Largest token id. Engines keep token ids in 32 bits."""


def checked_names(mapping: Mapping[str, Any], layout: type[LayoutFields]) -> None:
    """Check that a mapping has all required fields of a token layout, and no unknown fields."""
    field_defaults = {field.name: field.default for field in fields(layout)}
    if not isinstance(mapping, Mapping):
        raise OptionError(f"a token layout must be a table of fields, got {mapping!r}")
    for name in mapping:
        if name not in field_defaults:
            from vllm_mmout.messages import unknown  # lazy: reading streams must not load more of this package

            raise unknown(name, field_defaults, kind="field", where=" of a token layout")
    for name, default in field_defaults.items():
        if default is MISSING and name not in mapping:
            raise OptionError(f"a token layout must have {name}, got {', '.join(mapping) or 'nothing'}", param=name)


def checked_types(layout: LayoutFields) -> None:
    """Check the type of each field of a token layout. Raise an OptionError that names the wrong field."""
    values = vars(layout)
    kind: Any = type(layout)
    try:
        msgspec.convert(values, _struct(kind))
    except msgspec.ValidationError as error:
        place = re.search(r"\$\.(\w+)", str(error))
        name = place[1] if place else None
        got = f", got {values[name]!r}" if name else ""
        raise OptionError(f"token layout: {error}{got}", param=name) from None


@cache
def _struct(layout: type[LayoutFields]) -> type[msgspec.Struct]:
    """Return a msgspec Struct class with the fields of a token layout. It is used to check the fields' types."""
    hints = get_type_hints(layout)
    return msgspec.defstruct("Fields", [(field.name, hints[field.name]) for field in fields(layout)])


def check(layout: LayoutFields) -> None:
    """Raise an OptionError if a field of a token layout is out of range or contradicts another field.

    The types of the fields must already have been checked by `checked_types`.
    """
    _check_codebooks(layout)
    _check_order(layout)
    _check_modality(layout)
    _check_ranges(layout)
    _check_single_tokens(layout)


def _wrong(field: str, fact: str, value: object, remedy: str) -> OptionError:
    return OptionError(f"{field} {fact}, got {value}; {remedy}", param=field)


def _check_codebooks(layout: LayoutFields) -> None:
    if layout.codebooks < 1:
        raise _wrong("codebooks", "must be 1 or more", layout.codebooks, "set it to the decoder's number of codebooks")
    sizes = (layout.size,) if isinstance(layout.size, int) else layout.size
    if not isinstance(layout.size, int) and len(sizes) != layout.codebooks:
        remedy = f"give {layout.codebooks} numbers, or one number for all"
        raise _wrong("size", "must be one number, or one number per codebook", list(sizes), remedy)
    if min(sizes) < 1 or max(sizes) * max(layout.codebooks, len(layout.pattern or ())) > _MAX_CODES:
        raise _wrong(
            "size", f"must be 1 or more codes, {_MAX_CODES} at most in all slots", layout.size, "use the decoder's size"
        )


def _check_order(layout: LayoutFields) -> None:
    """Check the fields that are only valid for some values of ``order``, such as ``pattern`` and ``pad``."""
    order, books = layout.order, layout.codebooks
    if layout.pattern is not None:
        if order != "interleaved":
            raise _wrong(
                "pattern", 'goes with order "interleaved" only', f"order {order!r}", "set that order, or no pattern"
            )
        if set(layout.pattern) != set(range(books)):
            remedy = f"name each of 0 to {books - 1}, or correct codebooks"
            raise _wrong("pattern", "must name every codebook and no other", list(layout.pattern), remedy)
        if layout.modality == "image" and len(layout.pattern) != books:
            remedy = "remove repeated codebooks"
            raise _wrong("pattern", "of an image must name each codebook once", list(layout.pattern), remedy)
    if layout.pad is not None and order != "delayed":
        raise _wrong("pad", 'goes with order "delayed" only', f"{layout.pad} with order {order!r}", "leave pad out")
    if order == "delayed" and layout.pad is None:
        raise _wrong("pad", 'is required by order "delayed"', None, "set the token that fills positions without a code")
    if order == "delayed" and books == 1:
        raise _wrong("order", '"delayed" needs 2 or more codebooks', "codebooks=1", "leave order and pad out")
    unequal = not isinstance(layout.size, int) and len(set(layout.size)) > 1
    if order == "sequential" and unequal and isinstance(layout.first, int) and layout.grid is None:
        remedy = "give one first per codebook, so that a token tells its codebook"
        raise _wrong("size", 'of order "sequential" with one first must be equal', list(layout.size), remedy)  # type: ignore[arg-type]


def _check_modality(layout: LayoutFields) -> None:
    """Check the fields that are only for images or only for sounds, and the fields that images require."""
    if layout.modality == "audio":
        for field in ("grid", "row_end"):
            if getattr(layout, field) is not None:
                remedy = 'leave it out, or set modality to "image"'
                raise _wrong(field, "is for images only", f"{getattr(layout, field)} with audio", remedy)
        return
    if layout.text_inside:
        raise _wrong("text_inside", "is for audio only", "true with images", "leave it out")
    if layout.grid is not None and min(layout.grid) < 1:
        raise _wrong(
            "grid", "must be 1 or more rows and columns", list(layout.grid), "use those of the decoder's codes"
        )
    if layout.row_end is not None and layout.order not in {"flattened", "interleaved"}:
        remedy = "leave row_end out and set grid"
        raise _wrong("row_end", "requires an order that writes row by row", f"order {layout.order!r}", remedy)
    if layout.grid is None and layout.row_end is None:
        remedy = "set grid to (rows, columns), or row_end to the token after each row"
        raise _wrong("grid", "or row_end is required for an image", "neither", remedy)


def _check_ranges(layout: LayoutFields) -> None:
    """Check that the token ids of codes are valid. Id ranges of different positions in a frame must not overlap."""
    firsts = (layout.first,) if isinstance(layout.first, int) else layout.first
    slots = len(layout.pattern or ()) or layout.codebooks
    if not isinstance(layout.first, int) and len(firsts) != slots:
        remedy = f"give {slots} token ids, or one"
        raise _wrong("first", "must be one token id, or one token id per slot", list(firsts), remedy)
    if min(firsts) < 0 or max(firsts) > _MAX_TOKEN_ID - _MAX_CODES:
        raise _wrong("first", "must be a token id, 0 or more", layout.first, "use the token id of code 0")
    if isinstance(layout.first, int):
        return
    ordered = sorted(enumerate(layout.slots), key=lambda entry: entry[1].first)
    for (left, low), (right, high) in pairwise(ordered):
        if high.first < low.stop:
            remedy = "separate the ranges, or give first as one number if all slots share one range"
            spans = f"{low.first} to {low.stop - 1} and {high.first} to {high.stop - 1}"
            raise _wrong("first", f"gives slots {left} and {right} ranges that overlap", spans, remedy)


def _check_single_tokens(layout: LayoutFields) -> None:
    """Check that the tokens of markers, row ends and padding differ from codes and from each other."""
    seen: dict[int, str] = {}
    marks = [(field, token) for field in ("begin", "end") for token in getattr(layout, field)]
    marks += [(field, token) for field in ("row_end", "pad") if (token := getattr(layout, field)) is not None]
    for field, token in marks:
        if not 0 <= token <= _MAX_TOKEN_ID:
            raise _wrong(field, "must be a token id, 0 or more", token, "take it from the tokenizer")
        if token in seen:
            raise _wrong(
                field, "must differ from other markers", f"{token}, which {seen[token]} also has", "correct one of them"
            )
        seen[token] = field
        for place, slot in enumerate(layout.slots):
            if slot.first <= token < slot.stop:
                remedy = "correct it, or first and size"
                fact = f"must not be among the codes of slot {place} ({slot.first} to {slot.stop - 1})"
                raise _wrong(field, fact, token, remedy)
