"""Make processes sleep while they wait for a message, in place of vLLM's busy polling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import zmq

SPINS_S = 0.002
"""Time that a process polls for a message before it sleeps until it is woken, in seconds."""
LONGEST_SLEEP_MS = 100
"""Longest time in milliseconds that a process sleeps before it checks for a message, even without a wake-up call.

ZeroMQ may lose a wake-up call. Without this limit, the process would then sleep for up to five seconds.
"""
_MAX_QUEUED_CALLS = 1000
"""Largest number of wake-up calls that the writer of a message queue keeps for a sleeping reader. Further calls are
dropped.

vLLM keeps one call, because readers in vLLM poll and need no wake-up calls.
"""


def rest_while_workers_compute(executor: Any) -> None:
    """Make the engine core sleep while it waits for the workers' answers, instead of polling for up to a second.

    A step of a model with output processors can take about a second, and a step of a text model only some milliseconds.
    On a machine without a GPU the polling would keep a CPU core from the threads that read tiles and write results.
    """
    broadcast = getattr(executor, "rpc_broadcast_mq", None)  # an executor without worker processes lacks the queue
    for queue in (*getattr(executor, "response_mqs", ()), *filter(None, [broadcast])):
        _rest(queue._spin_condition)  # noqa: SLF001 - in the hook table


def rest_between_steps() -> None:
    """Make a worker process sleep while it waits for the next step, instead of polling for up to a second.

    If tiles arrive more slowly than the model computes, the threads that read them can use the CPU core instead. vLLM
    makes a worker's queue after it loads the model, and none of the objects that this package extends holds the queue.
    This function therefore patches ``SpinCondition`` for all queues that the process makes from now on.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    condition: Any = SpinCondition
    original = condition.__init__

    @wraps(original)
    def resting(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _rest(self)
        if not self.is_reader:  # the socket is bound again, since its new limit counts for later connections only
            calls = self.local_notify_socket
            address = calls.getsockopt(zmq.LAST_ENDPOINT)
            calls.unbind(address)
            calls.bind(address)

    condition.__init__ = resting


def _rest(condition: Any) -> None:
    """Make the readers of a message queue sleep instead of polling the queue.

    ``condition`` is the queue's ``SpinCondition`` in this process. A reader is set up to sleep, and the writer to keep
    wake-up calls for sleeping readers. ``condition`` is None if all readers are on other machines.
    """
    if condition is None:
        return
    if condition.is_reader:
        condition.busy_loop_s = SPINS_S
        condition.wait = partial(_wait, condition.wait)
    else:
        condition.local_notify_socket.setsockopt(zmq.SNDHWM, _MAX_QUEUED_CALLS)


def _wait(wait: Callable[..., None], timeout_ms: int | None = None) -> None:
    """Call vLLM's ``wait``, with a timeout of at most `LONGEST_SLEEP_MS`."""
    wait(timeout_ms=LONGEST_SLEEP_MS if timeout_ms is None else min(timeout_ms, LONGEST_SLEEP_MS))
