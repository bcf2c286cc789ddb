"""Import of the packages of the extra "stac", which are needed to search, and to write items."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_mmout.errors import OptionError


def stac_package(name: str, purpose: str) -> Any:
    """Import a package of the extra, or raise OptionError that names the extra. ``purpose`` begins the message."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(f'{purpose} needs {name} ({error}); pip install "vllm-mmout[stac]"') from error
