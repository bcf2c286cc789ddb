"""Install all hooks of the hook table in vLLM, or none of them if vLLM has changed."""

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
"""Attributes of vLLM that were changed, by full name, as (module or class, attribute name, original value). The value
is ``ABSENT`` if the module or class did not have the attribute.
"""


def is_frontend() -> bool:
    """Return whether this process may create engines. Such a process has imported ``vllm.engine.arg_utils``."""
    return "vllm.engine.arg_utils" in sys.modules


def is_core() -> bool:
    """Return whether this process may run an engine core. Such a process has imported ``vllm.v1.engine.core``."""
    return "vllm.v1.engine.core" in sys.modules


def install(
    hooks: Sequence[Hook] | None = None,
    attributes: Sequence[Attribute] = ATTRIBUTES,
    *,
    frontend: bool = True,
    core: bool = True,
) -> None:
    """Check that vLLM has every callable that the hooks need. Then install the hooks, and add ``attributes`` to vLLM.

    Args:
        hooks: hooks to install, by default the whole hook table.
        attributes: names to add to modules of vLLM.
        frontend: whether to install the hooks for processes that create engines.
        core: whether to install the hooks for processes that may run an engine core.

    Raises:
        HookError: vLLM has changed. Nothing was installed.

    """
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
        if attribute.target not in _installed and getattr(owner, name, ABSENT) is not value:  # else vLLM has the name
            _replace(attribute.target, owner, name, value)


def uninstall() -> None:
    """Undo every change that `install` has made to the modules and classes of vLLM."""
    for target in reversed(list(_installed)):
        owner, name, before = _installed.pop(target)
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def is_native(hook: Hook) -> bool:
    """Return whether the installed vLLM has the attribute ``hook.native``, which makes the hook unnecessary."""
    module, _, name = hook.native.rpartition(".")
    return bool(module) and hasattr(importlib.import_module(module), name)


def is_installed() -> bool:
    """Return whether `install` has changed any module or class of vLLM."""
    return bool(_installed)


def verify(
    hooks: Iterable[Hook] | None = None, attributes: Iterable[Attribute] = ATTRIBUTES
) -> dict[str, tuple[Any, str]]:
    """Check that vLLM has every hooked callable. Return a dict from full name to (module or class, attribute name).

    The dict has an entry for each hooked callable and for each of ``attributes``.

    Raises:
        HookError: vLLM lacks a callable, or a parameter that we use.
    """
    places, faults = find_targets(all_hooks() if hooks is None else hooks, attributes)
    if faults:
        raise HookError(
            f"vLLM {vllm_version()} differs from what vllm_mmout's hooks were written for, and no hook was installed: "
            f"{'; '.join(faults)}. Install a vLLM release that this version supports, or a newer vllm_mmout"
        )
    return places


def find_targets(
    hooks: Iterable[Hook], attributes: Iterable[Attribute] = ATTRIBUTES
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Find the vLLM module or class of each hooked callable, and of each name to add to vLLM. Report missing names.

    Return a dict and a list of messages. The dict maps the full name of each callable or attribute to (module or class,
    attribute name). The messages say which modules, callables and parameters the installed vLLM lacks.
    """
    places: dict[str, tuple[Any, str]] = {}
    faults: list[str] = []
    rows: list[Hook | Attribute] = [*hooks, *attributes]
    for row in rows:
        fault = _locate(row, places)
        if fault is not None:
            faults.append(f"{row.target} {fault} (needed to: {row.why})")
    return places, faults


def _locate(row: Hook | Attribute, places: dict[str, tuple[Any, str]]) -> str | None:
    """Find the vLLM module or class to which the name in ``row`` belongs, and store that object in ``places``.

    ``row`` is a `Hook` for a callable of vLLM, or an `Attribute`, a name to add to vLLM. The key in ``places`` is the
    full name, and the value is (module or class, attribute name). If vLLM lacks the module, the callable or a
    parameter, return a description of the fault, else None.
    """
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
    return _fault(row, owner, name) if isinstance(row, Hook) else None  # an added name needs only its module


def _fault(row: Hook, owner: Any, name: str) -> str | None:
    target = getattr(owner, name, None)
    if not callable(target):
        return "does not exist"
    if name not in vars(owner):  # an inherited method may be abstract, or shared with other classes
        return f"is not defined by {row.name.rpartition('.')[0]} itself"
    missing = _missing(target, row.parameters)
    return f"has no parameter {', '.join(missing)}" if missing else None


def _missing(target: Callable[..., Any], parameters: Sequence[str]) -> list[str]:
    try:
        signature = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a callable in C without a signature
        return list(parameters)
    return [name for name in parameters if name not in signature]


def _replace(target: str, owner: Any, name: str, value: Any) -> None:
    _installed[target] = (owner, name, vars(owner).get(name, ABSENT))
    setattr(owner, name, value)
