"""Alarm: how the threads of a scene wake ``LLM.generate``."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.v1.engine import EngineCoreOutputs

if TYPE_CHECKING:
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine


@dataclass(slots=True)
class Alarm:
    """Lets threads of scenes wake the caller's, also one that waits for an engine in processes of its own.

    A tile that is ready would else wait until the batch that runs has ended.
    """

    engine: BoundLLMEngine
    stepping: bool = False
    _silent: threading.Lock = field(default_factory=threading.Lock)
    """Held until somebody rings. Of C: an interrupt inside ``threading.Event`` would leave its lock held for good."""

    def __post_init__(self) -> None:
        self.clear()

    @property
    def rung(self) -> bool:
        """Whether it was rung and nobody has answered."""
        return not self._silent.locked()

    def clear(self) -> None:
        """Answer it."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until it is rung, and answer it."""
        self._silent.acquire(timeout=timeout_s)

    def ring(self) -> None:
        """Say that there is something to do."""
        if not self.rung:
            with suppress(RuntimeError):  # another thread was faster
                self._silent.release()
        if not self.stepping:
            return
        self.stepping = False
        self.engine.output_processor.poke()
        answers = getattr(self.engine.engine_core, "outputs_queue", None)
        if answers is not None:
            answers.put_nowait(EngineCoreOutputs())  # an answer with nothing in it ends the step
