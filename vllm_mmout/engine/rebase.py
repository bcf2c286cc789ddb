"""rebase(): the one way in which an object of vLLM's gets methods of ours; vLLM's classes stay as they are."""

from __future__ import annotations

from functools import cache
from typing import Any


def rebase(obj: Any, ours: Any) -> None:
    """Let an object be of a class of ours, above the class that it had."""
    if not isinstance(obj, ours):
        theirs: Any = type(obj)
        obj.__class__ = _rebased(ours, theirs)


@cache
def _rebased(ours: Any, theirs: Any) -> Any:
    """The one class of objects that had the class ``theirs``."""
    return ours if issubclass(ours, theirs) else type(theirs)(ours.__name__, (ours, theirs), {})
