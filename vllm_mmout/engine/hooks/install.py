"""install() and uninstall(): the hook table put in place as a whole, or not at all."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm_mmout.engine.hooks.added_names import ATTRIBUTES
from vllm_mmout.engine.hooks.compat import vllm_version
from vllm_mmout.engine.hooks.hook import CORE, FRONTEND, Attribute, Hook
from vllm_mmout.engine.hooks.hook_table import hooks as all_hooks
from vllm_mmout.errors import HookError

ABSENT = object()


_installed: dict[str, tuple[Any, str, Any]] = {}
"""What undoes each change, by target: owner, name, and what ``vars(owner)`` held, ``ABSENT`` where it held nothing."""


def is_frontend() -> bool:
    """Whether this process makes engines: workers and engine cores import no ``EngineArgs``."""
    return "vllm.engine.arg_utils" in sys.modules


def is_core() -> bool:
    """Whether the core of an engine may run in this process: workers do not import it."""
    return "vllm.v1.engine.core" in sys.modules


def install(
    hooks: Sequence[Hook] | None = None,
    attributes: Sequence[Attribute] = ATTRIBUTES,
    *,
    frontend: bool = True,
    core: bool = True,
) -> None:
    """Verify every target, then change them; what is installed already stays as it is."""
    left_out = {*(() if frontend else (FRONTEND,)), *(() if core else (CORE,))}
    rows = [hook for hook in (all_hooks() if hooks is None else hooks) if hook.where not in left_out]
    places = verify(rows, attributes)
    for hook in rows:
        if hook.wrap is not None and hook.target not in _installed and not is_native(hook):
            owner, name = places[hook.target]
            _replace(hook.target, owner, name, hook.wrap(getattr(owner, name)))
    for attribute in attributes:
        owner, name = places[attribute.target]
        value = attribute.value()
        if attribute.target not in _installed and getattr(owner, name, ABSENT) is not value:  # else vLLM has it itself
            _replace(attribute.target, owner, name, value)


def uninstall() -> None:
    """Undo every change: ``vars()`` of each target is as it was."""
    for target in reversed(list(_installed)):
        owner, name, before = _installed.pop(target)
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def is_native(hook: Hook) -> bool:
    """Whether this vLLM does itself what the row would have it do."""
    module, _, name = hook.native.rpartition(".")
    return bool(module) and hasattr(importlib.import_module(module), name)


def is_installed() -> bool:
    """Whether any hook is in place."""
    return bool(_installed)


def verify(
    hooks: Iterable[Hook] | None = None, attributes: Iterable[Attribute] = ATTRIBUTES
) -> dict[str, tuple[Any, str]]:
    """Find the owner and attribute of every target."""
    places, faults = found(all_hooks() if hooks is None else hooks, attributes)
    if faults:
        raise HookError(
            f"vLLM {vllm_version()} differs from what vllm_mmout's hooks were written for, none was installed: "
            f"{'; '.join(faults)}. Install a vLLM release that this version supports, or a newer vllm_mmout"
        )
    return places


def found(
    hooks: Iterable[Hook], attributes: Iterable[Attribute] = ATTRIBUTES
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Return the owner and attribute of each target, and for each target that vLLM lacks a line that says why."""
    places: dict[str, tuple[Any, str]] = {}
    faults: list[str] = []
    rows: list[Hook | Attribute] = [*hooks, *attributes]
    for row in rows:
        fault = _locate(row, places)
        if fault is not None:
            faults.append(f"{row.target} {fault} (needed to: {row.why})")
    return places, faults


def _locate(row: Hook | Attribute, places: dict[str, tuple[Any, str]]) -> str | None:
    """Note where the target is; what is wrong with it, if anything."""
    try:
        owner: Any = importlib.import_module(row.module)
    except ImportError as error:
        return f"cannot be imported ({error})"
    *path, name = row.name.split(".")
    for step in path:
        owner = getattr(owner, step, None)
        if owner is None:
            return f"does not exist (no {step})"
    places[row.target] = (owner, name)
    return _fault(row, owner, name) if isinstance(row, Hook) else None  # a name is added: its module must be there


def _fault(row: Hook, owner: Any, name: str) -> str | None:
    target = getattr(owner, name, None)
    if not callable(target):
        return "does not exist"
    if name not in vars(owner):  # what is inherited may be an abstract method, or another class's business
        return f"is not defined by {row.name.rpartition('.')[0]} itself"
    missing = _missing(target, row.parameters)
    return f"has no parameter {', '.join(missing)}" if missing else None


def _missing(target: Callable[..., Any], parameters: Sequence[str]) -> list[str]:
    try:
        known = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a callable of C that does not say
        return list(parameters)
    return [name for name in parameters if name not in known]


def _replace(target: str, owner: Any, name: str, value: Any) -> None:
    _installed[target] = (owner, name, vars(owner).get(name, ABSENT))
    setattr(owner, name, value)
