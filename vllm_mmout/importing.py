"""Import objects that a configuration names as "package.module:Class"."""

from __future__ import annotations

import importlib
import re

from vllm_mmout.errors import RegistrationError, type_and_message

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_path(text: str) -> bool:
    """Return whether ``text`` has the form "package.module:Class"."""
    return _PATH.fullmatch(text) is not None


def import_path(path: str, role: str) -> object:
    """Import the object at ``path``, a text such as "package.module:Class".

    ``role`` describes the object in error messages.
    """
    module_name, _, qualname = path.partition(":")
    try:
        value: object = importlib.import_module(module_name)
    except ImportError as error:
        raise RegistrationError(
            f"cannot import {role} {path!r}: {type_and_message(error)}; install its package, put the folder of"
            f" module {module_name!r} on PYTHONPATH, or correct the path"
        ) from error
    for attribute in qualname.split("."):
        if not hasattr(value, attribute):
            raise RegistrationError(
                f"cannot import {role} {path!r}: module {module_name!r} has no {qualname!r}; correct the path"
            )
        value = getattr(value, attribute)
    return value
