"""Add this package's HTTP routes to vLLM's server, as an endpoint plugin that ``vllm-mmout serve`` enables."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from vllm_mmout.errors import MMOutError

SWITCH: Final = "MMOUT_SERVING"
"""Environment variable that enables this package's HTTP routes. The API server processes inherit it."""
GROUP: Final = "vllm.endpoint_plugins"
NAME: Final = "mmout_serving"
"""Name of this package's entry point in ``vllm.endpoint_plugins``. The entry point in ``vllm.general_plugins`` has a
different name, because the environment variable ``VLLM_PLUGINS`` selects plugins by name."""
_log = logging.getLogger("vllm.mmout")


def is_switched_on() -> bool:
    """Return whether this process belongs to a server that was started with this package's HTTP routes."""
    return SWITCH in os.environ


def our_endpoint() -> Callable[[], Any]:
    """Return the factory of this package's endpoint plugin, which adds HTTP routes to vLLM's server.

    It is loaded through the entry point, as vLLM would load it, because `engine` may not import `serving`.
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
    """Return the endpoint plugins that vLLM's function ``original`` loads, and this package's own plugin.

    ``VLLM_PLUGINS`` stays as the user has set it. vLLM applies it to plugins of every kind, so adding our name would
    exclude other general plugins, and adding their names would admit endpoint plugins of the same names.
    """
    factory = our_endpoint()
    allowed = "VLLM_PLUGINS" in os.environ
    others = any(point.name != NAME for point in importlib.metadata.entry_points(group=GROUP))
    # If our plugin is the only one and VLLM_PLUGINS is not set, vLLM would load none, and warn about ours.
    plugins = list(original(*args, **kwargs)) if allowed or others else []
    if all(plugin.name != NAME for plugin in plugins):
        plugins.append(factory())
        _log.info("Loaded endpoint plugin %s", NAME)
    return plugins
