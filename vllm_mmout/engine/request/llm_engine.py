"""Ctrl-C and a synchronous engine, whose state an interrupt in the middle of a step would leave half changed for good.

An engine in this process runs its scheduler here; one in processes of its own gets messages of several frames, and half
a message would garble the next one. Only where such an engine waits for an answer does a Ctrl-C come at once.
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
    """Holds a Ctrl-C back while an engine is being changed."""

    def __init__(self) -> None:
        self._before: Handler | None = None
        """The handler that ours stands before; None outside `watched`."""
        self._held = False
        self._came: list[FrameType | None] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Stand before the handler of Ctrl-C, once for many `held_back`: to set one takes as long as a request."""
        inside = self._before is not None or threading.current_thread() is not threading.main_thread()
        before = None if inside else signal.getsignal(signal.SIGINT)
        if not callable(before):
            yield  # we do already, or no Python code runs here on a Ctrl-C
            return
        self._came.clear()
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            self._before = before
            self._let_go()
            yield
        finally:
            self._before = None  # first: a Ctrl-C can come as soon as its handler is back
            signal.signal(signal.SIGINT, before)
        if self._came:
            before(signal.SIGINT, self._came[0])

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let a Ctrl-C wait until the block ends; a second one goes through at once."""
        with self.watched():
            if self._held or self._before is None or threading.current_thread() is not threading.main_thread():
                yield
                return
            self._came.clear()  # of a block that a second one has left
            self._held = True
            try:
                yield
            finally:
                self._held = False
            self._let_go()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside `held_back`: let a Ctrl-C come at once, also one that waits."""
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
    """vLLM's synchronous engine whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout: Interrupts

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """As vLLM's; with decodes pending and nothing left in the engine it waits for the decoders.

        It never raises for a request: a failed one comes back with its ``error``.
        """
        router = self.output_processor
        if router.holds_the_rest:
            return [*router.wait_ready()]
        with self.mmout.held_back():
            outputs = super().step()
        return [*outputs, *router.take_ready()]

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        """As vLLM's."""
        with self.mmout.held_back():
            return super().add_request(*args, **kwargs)

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """As vLLM's."""
        with self.mmout.held_back():
            super().abort_request(request_ids, internal)


class BoundClient(SyncMPClient):
    """vLLM's client of an engine in processes of its own: where it waits, a Ctrl-C comes at once.

    vLLM ends the thread that receives answers when the engine's process was killed; who waits for one would wait for
    ever.
    """

    mmout: Interrupts

    def get_output(self) -> Any:
        """As vLLM's."""
        with self.mmout.let_through():
            return super().get_output()

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM's, and tell who waits."""
        self.outputs_queue.put_nowait(EngineDeadError())
        super().shutdown(*args, **kwargs)


def bind_client(client: Any, interrupts: Interrupts) -> None:
    """Bind the client of an engine in processes of its own; leave any other."""
    if isinstance(client, SyncMPClient):
        rebase(client, BoundClient)
        client.mmout = interrupts
