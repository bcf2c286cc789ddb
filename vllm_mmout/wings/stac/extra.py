"""Import the optional packages of the extra "stac", which are needed to search for and to write STAC items."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_mmout.errors import OptionError


def stac_package(name: str, purpose: str) -> Any:
    """Import an optional package. Raise OptionError "``purpose`` needs ``name`` ..." if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(f'{purpose} needs {name} ({error}); pip install "vllm-mmout[stac]"') from error
