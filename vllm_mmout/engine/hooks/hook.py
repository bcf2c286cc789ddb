"""Types of the hook table: `Hook`, a vLLM callable to wrap or use, and `Attribute`, a name to add to vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FRONTEND = "frontend"
"""Value of `Hook.where` for a hook that is needed only in processes that create engines.

The vLLM plugin of this package installs the hook only if `install.is_frontend` returns True.
"""
CORE = "core"
"""Value of `Hook.where` for a hook that is needed only in processes with an engine core.

The vLLM plugin of this package installs the hook only if `install.is_core` returns True.
"""
ANYWHERE = "anywhere"
"""Value of `Hook.where` for hooks that are needed in every process."""


@dataclass(frozen=True, slots=True)
class Hook:
    """Callable of vLLM that this package replaces with a wrapper, or uses unchanged."""

    module: str
    name: str
    """Qualified name of the callable in its module, for example ``AsyncLLM.abort``."""
    parameters: tuple[str, ...]
    """Names of the callable's parameters that must exist. If a parameter is missing, the hook cannot be installed."""
    why: str
    """Purpose of the hook, as a phrase that follows "needed to: " in error messages."""
    since: str
    """First vLLM version that has the callable with this name and these parameters."""
    until: str
    """Change in a future vLLM that would make the hook unnecessary."""
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Function that turns the original callable into its replacement, or None if the original is used unchanged."""
    where: str = FRONTEND
    """Processes that need the hook: `FRONTEND`, `CORE` or `ANYWHERE`."""
    native: str = ""
    """Full name of a vLLM attribute that makes the hook unnecessary. If vLLM has the attribute, the hook is not
    installed.
    """

    @property
    def target(self) -> str:
        """Full name of the hooked callable: ``module.name``."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Name that this package adds to a module or class of vLLM."""

    module: str
    name: str
    value: Callable[[], Any]
    """Function without arguments that returns the object to store in vLLM's ``module`` as ``name``."""
    why: str
    """Purpose of the name that is added to vLLM, as a verb phrase. Error messages print it after "needed to: "."""

    @property
    def target(self) -> str:
        """Full name of the attribute that this package adds to vLLM: ``module.name``."""
        return f"{self.module}.{self.name}"
