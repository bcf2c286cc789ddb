"""Run functions on any node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def on_a_node(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function on any node and return its result. If the node dies, run the function again on another node.

    The task reserves no CPUs, because engines may hold all of them until the last scene is done. Ray's dashboard shows
    it under ``name``.
    """
    import ray

    remote: Any = ray.remote(function)
    result: R = ray.get(remote.options(name=name, num_cpus=0, max_retries=-1).remote(*args, **kwargs))
    return result


def this_node() -> str:
    """Return the network address of this machine, as Ray's dashboard shows it."""
    import ray

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address
