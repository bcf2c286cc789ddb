"""Hook and Attribute: the rows of the hook table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FRONTEND = "frontend"
"""Rows for processes with an ``EngineArgs``: those that make engines.

In a core or a worker the import of these rows' modules, as that of `LLM`, would cost a text model time.
"""
CORE = "core"
"""Rows for processes in which an engine's core may run: those that have imported its module; elsewhere as above."""
ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Hook:
    """One row: a callable of vLLM that is wrapped, or only relied on."""

    module: str
    name: str
    """Class and attribute, with a dot."""
    parameters: tuple[str, ...]
    """Parameters that we use; the row has drifted if one is missing."""
    why: str
    since: str
    """First vLLM version that has it in this form."""
    until: str
    """What makes the row superfluous."""
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Makes the replacement of the original; None: the row is only verified."""
    where: str = FRONTEND
    native: str = ""
    """A name of vLLM, with its module, that does what ``wrap`` would: where it is there, nothing is installed."""

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row: a name that is added to a module of vLLM."""

    module: str
    name: str
    value: Callable[[], Any]
    why: str

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"
