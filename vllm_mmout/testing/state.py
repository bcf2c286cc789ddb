"""Snapshots of an output processor's state, which show whether requests change its attributes or shared variables."""

from __future__ import annotations

import types
import zlib
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

_DEEPEST = 12
_LONGEST = 60
_CONTAINERS = (list, tuple, deque)
_SETS = (set, frozenset)
_PLAIN = (int, float, str, bytes, bytearray, type(None), np.ndarray, torch.Tensor)
_DATA = (*_CONTAINERS, *_SETS, *_PLAIN, dict)
_PASSED_OVER = (types.ModuleType, type, types.MethodType, property, staticmethod, classmethod)


def snapshot(processor: object, allow: Collection[str] = ()) -> dict[str, str]:
    """Return fingerprints of a processor's attributes and shared variables, by names such as "self._weights[0]".

    The state is that of the instance, of its classes below `object`, and of the data that their methods can change:
    module variables that they name, variables of an enclosing function, default values of arguments. Names in
    ``allow`` are skipped.
    """
    texts: dict[str, str] = {}
    walk = _Walk(texts, allow)
    for name, value in _attributes(processor).items():
        walk(value, f"self.{name}", name)
    for cls in type(processor).__mro__[:-1]:
        for name, value in vars(cls).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                for place, (variable, shared) in _shared(function).items():
                    walk(shared, place, variable)
            elif not name.startswith("__"):
                walk(value, f"{cls.__name__}.{name}", name)
    return texts


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Describe each attribute and variable of an output processor that differs between two results of `snapshot`."""
    places = dict.fromkeys((*before, *after))
    return [
        f"{place} was {before.get(place, 'not there')} and is {after.get(place, 'not there')}"
        for place in places
        if before.get(place) != after.get(place)
    ]


def _shared(function: types.FunctionType) -> dict[str, tuple[str, Any]]:
    """Return the data that all calls of a function share: globals, closure variables and default values.

    Objects that are not data, such as modules and functions, are left out. Each value of the dict is a pair (name,
    object). The keys describe the places for messages, such as "default 0 of decode()".
    """
    code = function.__code__
    module = function.__module__
    shared = {
        f"{module}.{name}": (name, function.__globals__[name]) for name in code.co_names if name in function.__globals__
    }
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # raised by an empty cell
            if name != "__class__":
                shared[f"{name} around {function.__name__}()"] = (name, cell.cell_contents)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for place, value in enumerate(defaults):
        shared[f"default {place} of {function.__name__}()"] = (function.__name__, value)
    return {place: (name, value) for place, (name, value) in shared.items() if isinstance(value, _DATA)}


class _Walk:
    def __init__(self, texts: dict[str, str], allow: Collection[str]) -> None:
        self._found = texts
        self._allow = allow
        self._path: list[int] = []

    def __call__(self, value: Any, place: str, name: str = "") -> None:
        if name in self._allow or isinstance(value, _PASSED_OVER):
            return
        if id(value) in self._path or len(self._path) > _DEEPEST:
            self._found[place] = f"another {type(value).__name__}"
            return
        digest = _fingerprint(value)
        inner = _inside(value, place) if digest is None else None
        self._found[place] = digest or _text(value) if inner is None else f"{type(value).__name__} of {len(inner)}"
        self._path.append(id(value))
        for deeper, (item_name, item) in (inner or {}).items():
            self(item, deeper, item_name)
        self._path.pop()


def _inside(value: Any, place: str) -> dict[str, tuple[str, Any]] | None:
    """Return a dict of the items or attributes inside ``value``. Each key is an expression, such as "self.weights[0]".

    The expressions begin with ``place``, the expression for ``value``. Each value of the dict is a pair of an
    attribute's name, or "" for an item, and the object. Return None for an object without items or attributes, such as
    an array.
    """
    if isinstance(value, Mapping):
        return {f"{place}[{_text(key)}]": ("", item) for key, item in value.items()}
    if isinstance(value, _CONTAINERS):
        return {f"{place}[{number}]": ("", item) for number, item in enumerate(value)}
    if isinstance(value, (np.ndarray, np.generic, types.FunctionType, *_SETS)):
        return None
    attributes = _attributes(value)
    return {f"{place}.{name}": (name, item) for name, item in attributes.items()} or None


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", None) or {})
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                attributes[slot] = getattr(value, slot)
    return attributes


def _fingerprint(value: Any) -> str | None:
    """Return a digest of an array, a `functools` cache or a random generator, or None for other values."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return f"{value.dtype} {list(value.shape)} #{zlib.crc32(flat.view(torch.uint8).numpy().data):08x}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {list(value.shape)} #{zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, torch.Generator):
        return f"Generator #{zlib.crc32(value.get_state().numpy().data):08x}"
    if hasattr(value, "cache_info"):  # functools.cache and lru_cache
        return f"a cache of {value.cache_info().currsize}"
    state = getattr(value, "getstate", None) or getattr(value, "bit_generator", None)
    if state is not None:  # random.Random, numpy.random.Generator
        return f"{type(value).__name__} #{zlib.crc32(repr(state() if callable(state) else state.state).encode()):08x}"
    return None


def _text(value: Any) -> str:
    plain: object = object.__repr__
    if type(value).__repr__ is not plain:
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... #{zlib.crc32(text.encode()):08x}"
    return f"a {type(value).__name__}"
