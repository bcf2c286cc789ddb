"""Waiting asleep: what processes of a bound engine do between steps, where vLLM's look for messages without a pause."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

SPINS_S = 0.002
"""Seconds that a process looks again and again whether it has a message, before it waits to be woken."""


def rest_while_workers_compute(executor: Any) -> None:
    """Wait for workers' answers asleep, where vLLM looks for them without a pause for up to a second.

    A step of ours takes as long as that, not some milliseconds as one token does: on a machine without a GPU the core's
    process would take a processor from those who read the tiles and write the result, and they one from the worker.
    """
    for answers in getattr(executor, "response_mqs", ()):
        answers._spin_condition.busy_loop_s = SPINS_S  # noqa: SLF001 - in the hook table


def rest_between_steps() -> None:
    """Wait for steps asleep, in a worker's own process, where vLLM looks for them without a pause for up to a second.

    Where tiles come more slowly than forwards end, those who read them could have that processor. A worker's queue is
    made after its model is loaded, and nothing that is bound has it: so this goes for all that the process makes.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    condition: Any = SpinCondition
    condition.__init__ = partialmethod(condition.__init__, busy_loop_s=SPINS_S)
