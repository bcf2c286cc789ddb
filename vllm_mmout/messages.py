"""Format error messages: shorten long values, and suggest a similar name for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from vllm_mmout.errors import OptionError

_SHOWN: Final = 100
"""Maximum number of characters of a value in an error message."""


def unknown(name: object, known: Iterable[str], *, kind: str = "option", where: str = "") -> OptionError:
    """Return the error for a ``name`` that is not in ``known``. The message lists the known names."""
    known = list(known)
    message = f"unknown {kind} {shown(name)}{where}{close_match(name, known)} (known: {', '.join(known)})"
    return OptionError(message, param=str(name)[:_SHOWN])


def close_match(name: object, known: Iterable[str]) -> str:
    """Return a hint such as "; did you mean 'tile'?" for an unknown name, or "" if no known name is similar."""
    near = difflib.get_close_matches(str(name)[:40], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Any) -> str:
    """Return the text that shows a value in an error message. A text of more than 100 characters is cut.

    Only the beginning of a large value is formatted.
    """
    text = ""
    for piece in _written(value):
        text += piece
        if len(text) > _SHOWN:
            return f"{text[:_SHOWN]}..."
    return text


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(value[: _SHOWN + 1])
    elif isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            yield ", " if place else ""
            yield from _written(item)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for place, (name, item) in enumerate(value.items()):
            yield f"{', ' if place else ''}{shown(name)}: "
            yield from _written(item)
        yield "}"
    else:
        yield repr(value)
