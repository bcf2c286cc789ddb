"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The module functions ``__getattr__`` and ``__dir__`` of a package."""
    module: dict[str, Any] = vars(sys.modules[package])

    def get(name: str) -> object:
        if name not in homes:
            known = ", ".join(sorted(homes))
            raise AttributeError(f"module {package!r} has no attribute {name!r} (public: {known})")
        value: object = getattr(importlib.import_module(homes[name]), name)
        module[name] = value
        return value

    def names() -> list[str]:
        return sorted({*module, *homes})

    return get, names
