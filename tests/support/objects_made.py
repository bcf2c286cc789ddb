"""Counts the project's types that are instantiated, and its calls of named functions, while a block runs."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import msgspec


def _classes():
    """Yield each class that a loaded module of the project defines."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "vllm_mmout" and module is not None:
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield value


def _counting(function, counter, of_type):
    """Wrap a constructor, which counts the type of what it makes once, whichever base class it belongs to."""

    @functools.wraps(function)
    def counted(self, *args, **kwargs):
        if of_type is (self if isinstance(self, type) else type(self)):
            counter[f"{of_type.__module__}.{of_type.__qualname__}"] += 1
        return function(self, *args, **kwargs)

    return counted


@contextmanager
def types_made():
    """Count instances by type, in all threads of this process; warm up first, so that all modules are loaded.

    The structs of msgspec that C code makes without ``__post_init__`` (headers of the wire) are not counted.
    """
    counter: Counter[str] = Counter()
    with ExitStack() as patched:
        for kind in {*_classes()}:
            name = "__init__"
            if issubclass(kind, msgspec.Struct):
                name = "__post_init__"
            elif issubclass(kind, tuple):
                name = "__new__"
            function = getattr(kind, name, None)
            if function is not None and not getattr(kind, "_is_protocol", False):
                wrapped = _counting(function, counter, kind)
                patched.enter_context(patch.object(kind, name, wrapped))
        yield counter


@contextmanager
def calls(*functions):
    """Count the calls of functions, given as (owner, name)."""
    counter: Counter[str] = Counter()

    def counted(name, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            counter[name] += 1
            return function(*args, **kwargs)

        return call

    with ExitStack() as patched:
        for owner, name in functions:
            static = vars(owner).get(name)
            if isinstance(static, classmethod):
                replaced = classmethod(counted(name, static.__func__))
            else:
                replaced = counted(name, getattr(owner, name))
            patched.enter_context(patch.object(owner, name, replaced))
        yield counter
