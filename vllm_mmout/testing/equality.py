"""Compare output objects: this package's classes, arrays, pictures, records and nested containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from PIL import Image

from vllm_mmout.outputs.base import MediaOutput


def difference(
    left: Any, right: Any, *, equal: Callable[[Any, Any], bool] | None = None, at: str = "result"
) -> str | None:
    """Describe how two outputs differ, or return None if they are equal.

    Supports the output classes of this package, numpy arrays, torch tensors, Pillow images, pydantic models,
    dataclasses, msgspec structs, mappings, sequences, numbers and text, in any nesting, and all classes that define
    ``__eq__``; for others raises AssertionError. NaN equals NaN; 0.0 and -0.0 differ, as do dtypes. ``equal`` replaces
    the comparison; ``at`` is the name of the outputs in the description.
    """
    if equal is not None:
        return None if equal(left, right) else f"{at}: equal() says that the two differ"
    if type(left) is not type(right):
        return f"{at} is {_named(left)} and {_named(right)}"
    compare = next((compare for classes, compare in _BY_CLASS if isinstance(left, classes)), _others)
    return compare(left, right, at)


def _records(left: Any, right: Any, at: str) -> str | None:
    return _mappings(_fields(left) or {}, _fields(right) or {}, lambda name: f"{at}.{name}")


def _keyed(left: Mapping[Any, Any], right: Mapping[Any, Any], at: str) -> str | None:
    return _mappings(left, right, lambda name: f"{at}[{name!r}]")


def _sequences(left: Sequence[Any], right: Sequence[Any], at: str) -> str | None:
    if len(left) != len(right):
        return f"{at} has {len(left)} and {len(right)} items"
    return _first(difference(*pair, at=f"{at}[{place}]") for place, pair in enumerate(zip(left, right, strict=True)))


def _tensors(left: torch.Tensor, right: torch.Tensor, at: str) -> str | None:
    if left.dtype != right.dtype:
        return f"{at} is {left.dtype} and {right.dtype}"
    return _arrays(_array(left), _array(right), at)


def _numbers(left: Any, right: Any, at: str) -> str | None:
    return _arrays(np.asarray(left), np.asarray(right), at)


def _fields(value: Any) -> Mapping[str, Any] | None:
    """Return a dict of an object's fields by name. Return None for an object without fields, such as an array.

    Dataclasses, msgspec structs, pydantic models and `MediaOutput` objects have fields.
    """
    if isinstance(value, MediaOutput):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
    if hasattr(type(value), "__struct_fields__"):  # msgspec
        return {name: getattr(value, name) for name in type(value).__struct_fields__}
    if hasattr(type(value), "__pydantic_fields__"):
        return {**vars(value), **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    return None


def _mappings(left: Mapping[Any, Any], right: Mapping[Any, Any], at: Callable[[Any], str]) -> str | None:
    for name in (*left, *right):
        if name not in left or name not in right:
            return f"{at(name)} is in one of the two only"
    return _first(difference(left[name], right[name], at=at(name)) for name in left)


def _first(answers: Iterable[str | None]) -> str | None:
    return next((answer for answer in answers if answer is not None), None)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    # numpy lacks the narrow floating-point types; float32 represents all of their values.
    return (values.float() if values.is_floating_point() and values.itemsize < 4 else values).numpy()


def _arrays(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], at: str) -> str | None:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return f"{at} is {left.dtype} {list(left.shape)} and {right.dtype} {list(right.shape)}"
    if left.dtype.hasobject:
        return difference(left.tolist(), right.tolist(), at=at)
    if left.tobytes() == right.tobytes():
        return None
    if left.dtype.names is not None:
        return _first(_arrays(left[name], right[name], f"{at}[{name!r}]") for name in left.dtype.names)
    differs = left != right
    if left.dtype.kind in "fc":
        differs &= ~(np.isnan(left) & np.isnan(right))
        differs |= (left == right) & (np.signbit(left.real) != np.signbit(right.real))
    if left.dtype.kind in "mM":
        differs &= ~(np.isnat(left) & np.isnat(right))
    if not differs.any():
        return None
    place = tuple(int(index) for index in np.argwhere(differs)[0])
    where = f"{at}{list(place)}" if place else at
    return f"{where} is {left[place].item()!r} and {right[place].item()!r} ({int(differs.sum())} of {left.size} differ)"


def _pictures(left: Image.Image, right: Image.Image, at: str) -> str | None:
    if (left.mode, left.size) != (right.mode, right.size):
        return f"{at} is {left.mode} {left.size} and {right.mode} {right.size}"
    if left.getpalette() != right.getpalette():
        return f"the palette of {at} differs"
    return _arrays(np.asarray(left), np.asarray(right), at)


def _others(left: Any, right: Any, at: str) -> str | None:
    if left is right:
        return None
    if _fields(left) is not None:
        return _records(left, right, at)
    identity: object = object.__eq__
    if type(left).__eq__ is identity and not isinstance(left, Enum):
        raise AssertionError(
            f"there is no way to compare two {_named(left)} ({at}): two of them are equal only if they are the same"
            " object; give equal=, a function of two outputs, or define __eq__"
        )
    return None if left == right else f"{at} is {left!r} and {right!r}"


def _named(value: Any) -> str:
    return "None" if value is None else type(value).__name__


_BY_CLASS: tuple[tuple[Any, Callable[[Any, Any, str], str | None]], ...] = (
    (torch.Tensor, _tensors),
    ((np.ndarray, np.generic, float, complex), _numbers),
    (Image.Image, _pictures),
    (MediaOutput, _records),
    (Mapping, _keyed),
    ((str, bytes, bytearray, memoryview, range), _others),
    (Sequence, _sequences),
)
"""Pairs (classes, function that compares their objects). The first match is used. `_others` compares objects of other
classes."""
