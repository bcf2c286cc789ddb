"""Functions that Ray runs on any node of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import ray

P = ParamSpec("P")
R = TypeVar("R")


def on_a_node(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function on a node, on another one where that dies, and wait for what it gives; its name is for users.

    It asks for no processor: engines may have all of them, until the last scene is done.
    """
    remote: Any = ray.remote(function)
    result: R = ray.get(remote.options(name=name, num_cpus=0, max_retries=-1).remote(*args, **kwargs))
    return result


def this_node() -> str:
    """The address of the machine that this runs on, as Ray's dashboard shows it."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address
