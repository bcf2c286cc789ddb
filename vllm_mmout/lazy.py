"""Import a package's modules lazily, when their names are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that imports its modules on first use.

    ``homes`` maps each module to the names that it defines, separated by spaces.
    """
    module: dict[str, Any] = vars(sys.modules[package])
    home = {name: defines for defines, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in home:
            public_names = ", ".join(sorted(home))
            raise AttributeError(f"module {package!r} has no attribute {name!r} (public: {public_names})")
        value: object = getattr(importlib.import_module(home[name]), name)
        module[name] = value
        return value

    def names() -> list[str]:
        return sorted({*module, *home})

    return get, names
