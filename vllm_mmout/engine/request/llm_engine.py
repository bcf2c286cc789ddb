"""Synchronous vLLM engine whose outputs are decoded, and its client for engines in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.llm_engine import LLMEngine

from vllm_mmout.engine.binding import rebase

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.request.interrupts import Interrupts
    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor


class BoundLLMEngine(LLMEngine):
    """vLLM's ``LLMEngine`` for a model with output processors. Its steps return decoded objects."""

    output_processor: RoutedOutputProcessor
    mmout: Interrupts

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        """Add a request as vLLM does. A Ctrl-C is handled only after the request was added."""
        with self.mmout.delayed(self.wake):
            return super().add_request(*args, **kwargs)

    def abort_request(self, *args: Any, **kwargs: Any) -> None:
        """Abort requests as vLLM does. A Ctrl-C is handled only after the requests were aborted."""
        with self.mmout.delayed(self.wake):
            super().abort_request(*args, **kwargs)

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """Run a step of the engine, and return the ready results. If the engine is idle, wait for pending decodes.

        A failed request does not raise: its output has the ``error``. A Ctrl-C is handled before or after the step.
        """
        self.mmout.deliver()
        router = self.output_processor
        with self.mmout.delayed(self.wake):
            if router.has_only_results_left:
                return [*router.wait_ready()]
            return [*super().step(), *router.take_ready()]

    def wake(self) -> None:
        """Make the current or next `step` return without waiting for a result. May be called from any thread."""
        self.output_processor.poke()
        answers = getattr(self.engine_core, "outputs_queue", None)  # an engine in this process lacks it
        if answers is not None:
            answers.put_nowait(EngineCoreOutputs())


class BoundClient(SyncMPClient):
    """Client of an engine in other processes, which wakes a waiting caller if the engine's process is killed.

    If the engine's process is killed, vLLM ends the thread that receives answers. `shutdown` then wakes the caller,
    which would otherwise wait for ever.
    """

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Shut the client down, and raise an error in a caller that waits for an answer."""
        self.outputs_queue.put_nowait(EngineDeadError())
        super().shutdown(*args, **kwargs)


def bind_client(client: Any) -> None:
    """Turn ``client`` into a `BoundClient` if its engine runs in other processes. Leave any other client unchanged."""
    if isinstance(client, SyncMPClient):
        rebase(client, BoundClient)
