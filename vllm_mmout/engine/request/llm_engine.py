"""BoundLLMEngine, a synchronous engine that a Ctrl-C cannot leave in an inconsistent state.

An engine in this process runs its scheduler here, which must not be interrupted. An engine in other processes gets
messages of several frames, and half a message would garble the next message. A Ctrl-C is delivered at once only while
the client waits for an answer of such an engine.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.llm_engine import LLMEngine

from vllm_mmout.engine.binding import rebase

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Handler that delays a Ctrl-C while an engine's state changes."""

    def __init__(self) -> None:
        self._before: Handler | None = None
        """The handler that ours replaces, or None outside `watched`."""
        self._held = False
        self._came: list[FrameType | None] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Replace the handler of Ctrl-C for many calls of `held_back`. Setting a handler takes as long as a request."""
        inside = self._before is not None or threading.current_thread() is not threading.main_thread()
        before = None if inside else signal.getsignal(signal.SIGINT)
        if not callable(before):
            yield  # our handler is set already, or Python does not run signal handlers in this thread
            return
        self._came.clear()
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            self._before = before
            self._let_go()
            yield
        finally:
            self._before = None  # before signal.signal: a Ctrl-C can come as soon as its handler is set again
            signal.signal(signal.SIGINT, before)
        if self._came:
            before(signal.SIGINT, self._came[0])

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Delay a Ctrl-C until the block ends; deliver a second Ctrl-C at once."""
        with self.watched():
            if self._held or self._before is None or threading.current_thread() is not threading.main_thread():
                yield
                return
            self._came.clear()  # an earlier block may have left a Ctrl-C here, if a second Ctrl-C ended it
            self._held = True
            try:
                yield
            finally:
                self._held = False
            self._let_go()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Deliver a Ctrl-C at once inside a `held_back` block, and deliver a delayed Ctrl-C on entry."""
        if not self._held:
            yield
            return
        self._held = False
        self._let_go()
        yield
        self._held = True

    def _let_go(self) -> None:
        if self._came and self._before is not None:
            self._before(signal.SIGINT, self._came.pop())

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._before is None or (self._held and not self._came):
            self._came.append(frame)
        else:
            self._before(signum, frame)


class BoundLLMEngine(LLMEngine):
    """Synchronous engine of vLLM whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout: Interrupts

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """Run a step, or wait for the decoders if the engine has ended all requests, and return the ready outputs.

        A failed request does not raise. The ``error`` of its output holds the exception.
        """
        router = self.output_processor
        if router.holds_the_rest:
            return [*router.wait_ready()]
        with self.mmout.held_back():
            outputs = super().step()
        return [*outputs, *router.take_ready()]

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        """Add a request as vLLM does. A Ctrl-C is delayed until it is added."""
        with self.mmout.held_back():
            return super().add_request(*args, **kwargs)

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """Abort requests as vLLM does. A Ctrl-C is delayed until they are aborted."""
        with self.mmout.held_back():
            super().abort_request(request_ids, internal)


class BoundClient(SyncMPClient):
    """Client of an engine in other processes, which a Ctrl-C interrupts at once while it waits for an answer.

    If the engine's process is killed, vLLM ends the thread that receives answers. `shutdown` then wakes the caller,
    which would otherwise wait for ever.
    """

    mmout: Interrupts

    def get_output(self) -> Any:
        """Wait for the engine's next answer, and return it. A Ctrl-C interrupts the wait."""
        with self.mmout.let_through():
            return super().get_output()

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Shut the client down, and raise an error in a caller that waits for an answer."""
        self.outputs_queue.put_nowait(EngineDeadError())
        super().shutdown(*args, **kwargs)


def bind_client(client: Any, interrupts: Interrupts) -> None:
    """Bind the client of an engine in other processes; leave any other client unchanged."""
    if isinstance(client, SyncMPClient):
        rebase(client, BoundClient)
        client.mmout = interrupts
