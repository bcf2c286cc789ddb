"""Importing what a config or a package names as "package.module:Class"."""

from __future__ import annotations

import importlib
import re

from vllm_mmout.errors import RegistrationError, type_and_message

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_path(text: str) -> bool:
    """Whether ``text`` reads "package.module:Class"."""
    return _PATH.fullmatch(text) is not None


def import_path(path: str, what: str) -> object:
    """Import what stands at "package.module:Class"; an error of the module itself is its author's to see as it is."""
    module_name, _, qualname = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise RegistrationError(
            f"cannot import {what} {path!r}: {type_and_message(error)}; install its package, put the folder of"
            f" module {module_name!r} on PYTHONPATH, or correct the path"
        ) from error
    for attribute in qualname.split("."):
        if not hasattr(found, attribute):
            raise RegistrationError(
                f"cannot import {what} {path!r}: module {module_name!r} has no {qualname!r}; correct the path"
            )
        found = getattr(found, attribute)
    return found
