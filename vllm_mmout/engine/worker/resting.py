"""Waiting asleep: what processes of a bound engine do between steps, where vLLM's look for messages without a pause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import zmq

SPINS_S = 0.002
"""Seconds that a process looks again and again whether it has a message, before it waits to be woken."""
LOOKS_AGAIN_MS = 100
"""Longest sleep of a process that waits for a message, in milliseconds.

ZeroMQ can lose the call that wakes a reader whose socket keeps one message only. vLLM's reader then sleeps for five
seconds.
"""
_CALLS = 1000
"""Calls that may be on their way to a process that sleeps.

vLLM has one, and drops all others: whoever looks for messages without a pause misses none by that, but one that sleeps
would, and only look again after five seconds.
"""


def rest_while_workers_compute(executor: Any) -> None:
    """Wait for workers' answers asleep, where vLLM looks for them without a pause for up to a second.

    A step of ours takes as long as that, not some milliseconds as one token does: on a machine without a GPU the core's
    process would take a processor from those who read the tiles and write the result, and they one from the worker.
    """
    asked = getattr(executor, "rpc_broadcast_mq", None)  # an executor without processes has none
    for queue in (*getattr(executor, "response_mqs", ()), *filter(None, [asked])):
        _rest(queue._spin_condition)  # noqa: SLF001 - in the hook table


def rest_between_steps() -> None:
    """Wait for steps asleep, in a worker's own process, where vLLM looks for them without a pause for up to a second.

    Where tiles come more slowly than forwards end, those who read them could have that processor. A worker's queue is
    made after its model is loaded, and nothing that is bound has it: so this goes for all that the process makes.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    condition: Any = SpinCondition
    made = condition.__init__

    @wraps(made)
    def resting(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _rest(self)
        if not self.is_reader:  # bound anew, for those who connect from now on
            calls = self.local_notify_socket
            address = calls.getsockopt(zmq.LAST_ENDPOINT)
            calls.unbind(address)
            calls.bind(address)

    condition.__init__ = resting


def _rest(condition: Any) -> None:
    """Have one end of a queue sleep, or call those who are connected and sleep; None: all are on other machines."""
    if condition is None:
        return
    if condition.is_reader:
        condition.busy_loop_s = SPINS_S
        condition.wait = partial(_wait, condition.wait)
    else:
        condition.local_notify_socket.setsockopt(zmq.SNDHWM, _CALLS)


def _wait(wait: Callable[..., None], timeout_ms: int | None = None) -> None:
    """Wait by vLLM's method, for `LOOKS_AGAIN_MS` at most."""
    wait(timeout_ms=LOOKS_AGAIN_MS if timeout_ms is None else min(timeout_ms, LOOKS_AGAIN_MS))
