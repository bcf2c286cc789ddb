"""Hook and Attribute, the rows of the hook table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FRONTEND = "frontend"
"""Value of `Hook.where` for rows that apply only in processes that make engines, which have imported ``EngineArgs``.

Importing the modules of these rows, such as that of `LLM`, would slow a text model's core and workers down.
"""
CORE = "core"
"""Value of `Hook.where` for rows that apply only in processes that have imported the module of the engine core.

Importing that module would slow other processes down.
"""
ANYWHERE = "anywhere"
"""Value of `Hook.where` for rows that apply in every process."""


@dataclass(frozen=True, slots=True)
class Hook:
    """Row for a callable of vLLM that is wrapped, or only relied on."""

    module: str
    name: str
    """Qualified name within the module, for example ``AsyncLLM.abort``."""
    parameters: tuple[str, ...]
    """Parameters that we use. The hook cannot be installed if vLLM lacks one of them."""
    why: str
    """Purpose of the row, worded to follow "needed to: " in messages."""
    since: str
    """First vLLM version that has the callable in this form."""
    until: str
    """Change of vLLM that would make the row unnecessary."""
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Function that builds the replacement from the original, or None if the row is only verified."""
    where: str = FRONTEND
    """Processes that the row applies to: `FRONTEND`, `CORE` or `ANYWHERE`."""
    native: str = ""
    """Full name of a vLLM attribute that makes the hook unnecessary. If it exists, the hook is not installed."""

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Row for a name that is added to a module of vLLM."""

    module: str
    name: str
    value: Callable[[], Any]
    """Function that returns the value of the name."""
    why: str
    """Purpose of the row, worded to follow "needed to: " in messages."""

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"
