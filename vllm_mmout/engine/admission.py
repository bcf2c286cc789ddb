"""Admission: what ``generate`` and the router tell each other while a request is added.

It goes through a context variable: vLLM's ``add_request`` has no room for it, and request ids may repeat.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_mmout.engine.decode import as_it_is

if TYPE_CHECKING:
    from vllm_mmout.engine.decode import Finish


@dataclass(slots=True)
class Admission:
    """What ``generate`` and the router tell each other while a request is added."""

    finish: Finish
    """What is done with the decoded output: laid on its input, written to a file."""
    internal_id: str | None = None
    """Set when the engine's frontend gets the request; from then on it must be aborted if it is not delivered."""

    def take_finish(self) -> Finish:
        """Hand over ``finish``; vLLM's tasks that start meanwhile keep this object, and must keep no input alive."""
        finish, self.finish = self.finish, as_it_is
        return finish


ADMISSION: ContextVar[Admission | None] = ContextVar("mmout_admission", default=None)
"""The admission of the request that is being added in this task, none for those that came by vLLM's own ways."""
