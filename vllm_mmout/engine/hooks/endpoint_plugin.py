"""Our routes on vLLM's server: the endpoint plugin that `serve` switches on, and no other."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from vllm_mmout.errors import MMOutError

SWITCH: Final = "MMOUT_SERVING"
"""Environment variable of a server with our routes; vLLM starts processes of API servers that inherit it."""
GROUP: Final = "vllm.endpoint_plugins"
NAME: Final = "mmout_serving"
"""Our entry point in the group; of another name than the general plugin, so that VLLM_PLUGINS can list it beside that
for a plain ``vllm serve``."""
_log = logging.getLogger("vllm.mmout")


def is_switched_on() -> bool:
    """Whether this process belongs to a server that was started to have our routes."""
    return SWITCH in os.environ


def our_endpoint() -> Callable[[], Any]:
    """What makes our endpoint plugin.

    It is looked up where vLLM would: `engine` may not import `serving`.
    """
    for point in importlib.metadata.entry_points(group=GROUP, name=NAME):
        if point.value.startswith("vllm_mmout."):
            factory: Callable[[], Any] = point.load()
            return factory
    raise MMOutError(
        f"the entry point {NAME} of {GROUP} is not registered, so the server would lack our routes;"
        " install the package again (pip install vllm-mmout)"
    )


def endpoint_plugins(original: Callable[..., Sequence[Any]], *args: Any, **kwargs: Any) -> list[Any]:
    """The endpoint plugins that vLLM would load, and ours.

    ``VLLM_PLUGINS`` stays as the user has it: vLLM reads it for plugins of every kind, so our name in it would shut out
    general plugins of others, and theirs would let in routes that bear the same name.
    """
    factory = our_endpoint()
    allowed = "VLLM_PLUGINS" in os.environ
    others = any(point.name != NAME for point in importlib.metadata.entry_points(group=GROUP))
    # With ours alone and no list of plugins vLLM would load nothing, and warn that ours is not in the list.
    plugins = list(original(*args, **kwargs)) if allowed or others else []
    if all(plugin.name != NAME for plugin in plugins):
        plugins.append(factory())
        _log.info("Loaded endpoint plugin %s", NAME)
    return plugins
