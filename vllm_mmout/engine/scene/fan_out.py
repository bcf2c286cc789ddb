"""Prepare the tiles of a request and join their results, in threads.

A thread makes the parts ahead of the engine, as far as the budget allows. For each processor, another thread joins the
results. In between, the `Schedule` sends the parts as ordinary requests.

A second Ctrl-C may interrupt the thread of the caller at any point. All locks that it shares with other threads are
therefore written in C: an interrupt cannot leave them held.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.observer import SILENT, blame
from vllm_mmout.engine.scene.lane import Lane, StoppedError
from vllm_mmout.engine.threads import background_thread
from vllm_mmout.engine.trace import TRACED, add_stage, stage, tracing
from vllm_mmout.errors import AbortedError, DecodeError, InputError, as_exception, type_and_message
from vllm_mmout.processors.part import PartBlock

if TYPE_CHECKING:
    from vllm_mmout.engine.request.request import PartInput
    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.processors.part import Part

ENDS_WITHIN_S = 30.0
"""Longest wait for the threads of a stopped request to end, in seconds."""


class FanOut(ABC):
    """Base class of scenes that manages the threads: one thread reads tiles, and others join the results."""

    pixels = 0
    """Number of pixels of the input, for metrics and the progress bar, or 0 if the number is unknown."""

    def __init__(self, processor_names: Sequence[str], total: int = 0, nbytes: int = 1) -> None:
        """Set up the request without starting its threads.

        Args:
            processor_names: names of the requested processors.
            total: number of parts, or 0 if it is unknown before `measure`.
            nbytes: largest size of a part's input in bytes.

        """
        self.total = total
        self.nbytes = nbytes
        self.done = 0
        """Number of tiles that every processor has added to its result. It includes tiles without valid pixels, which
        skip the engine."""
        self.error: BaseException | None = None
        self.context = copy_context()
        """Copy of the caller's context variables, for the threads."""
        self._observer = SILENT
        self._budget: TileBudget
        self._wake: Callable[[], None]
        self._lock = threading.RLock()
        self._began = 0.0
        self._stopped_at: float | None = None
        self._delivering = False
        self._ready: list[PartInput] = []
        self._held = 0
        """Number of tiles for which memory is reserved. A tile's memory is released when the tile has been joined."""
        self._lanes = {name: Lane(name, self) for name in processor_names}
        self._to_join = len(self._lanes)
        self._running: set[str | None] = {None, *self._lanes}
        """Names of the running threads: processor names for threads that join tiles, and None for the thread that reads
        tiles."""
        self._threads: dict[str | None, threading.Thread] = {}

    @abstractmethod
    def measure(self) -> tuple[int, int]:
        """Return the number of tiles and the largest tile size in bytes. Called in the thread that reads tiles."""

    @abstractmethod
    def parts(self) -> Generator[PartInput, None, None]:
        """Yield the model inputs of all tiles (or other parts) of the request, one by one or in blocks.

        The caller closes the generator. Call `reserve` before each block or part is read. If that returns False, stop.
        """

    @abstractmethod
    def join(self, processor_name: str, parts: Iterator[Part]) -> Any:
        """Join the decoded tiles of a processor into one result. Tiles arrive in any order. Called in a thread."""

    def deliver(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """Save the results of all processors if the request has a path, and return them."""
        return results

    def stopping(self) -> None:  # noqa: B027 - most subclasses have nothing else to stop
        """Stop additional work of a subclass when the request is stopped. May be called repeatedly, by any thread."""

    def start(self) -> None:
        """Start the threads. If the system cannot start a thread, stop the request and raise the system's error."""
        self._began = time.monotonic()
        works: dict[str | None, Callable[[], None]] = {None: self._make}
        works |= {name: partial(self._join, lane) for name, lane in self._lanes.items()}
        try:
            for name, work in works.items():
                carried = partial(self.context.copy().run, work)
                self._threads[name] = thread = background_thread(carried, "join" if name else "read")
                thread.start()
        except BaseException as error:
            self.stop(error)
            for name in works:
                if name not in self._threads or self._threads[name].ident is None:
                    self._ended(name)
            raise

    @property
    def stopped(self) -> bool:
        """Whether the request failed or was aborted."""
        return self._stopped_at is not None

    @property
    def reading(self) -> bool:
        """Whether tiles are still being read. False before the number of tiles is known."""
        return None in self._running and not self.stopped and self.total > 0

    @property
    def finished(self) -> bool:
        """Whether all threads have ended, so that the request has succeeded or failed."""
        return not self._running

    def reserve(self, count: int = 1) -> bool:
        """Wait until the memory budget admits ``count`` more tiles. Return False if the request is stopped."""
        if not self._budget.take(self.nbytes, lambda: self.stopped, count):
            return False
        with self._lock:
            self._held += count
        return True

    def take(self) -> list[PartInput]:
        """Return the blocks of tiles that became ready for the engine since the last call."""
        with self._lock:
            ready, self._ready = self._ready, []
        return ready

    def decoded(self, block: PartInput, processor_name: str, outputs: Sequence[Any]) -> None:
        """Pass decoded ``outputs`` to the thread that joins this processor's tiles. Called by decoding threads."""
        self._lanes[processor_name].put(PartBlock(block.parts, outputs))

    def failed(self, block: PartInput, error: BaseException) -> None:
        """Stop the request with the error of a block of tiles. The message names the failed tile."""
        self.stop(block.named_in(error))

    def outcome(self) -> Mapping[str, Any]:
        """Return the results by processor name. Raise if the request failed. The caller must close the results."""
        if self.error is not None:
            raise self.error
        return {name: lane.take_result() for name, lane in self._lanes.items()}

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the request, unless it has ended or is saving its results. Its threads end soon afterwards."""
        with self._lock:
            if self._delivering:
                return
            if not self.stopped and self._running:
                aborted = AbortedError("the request was aborted before its result was finished")
                self.error = self.error or as_exception(error or aborted)
            self._stopped_at = self._stopped_at or time.monotonic()
            self._ready.clear()
        for lane in self._lanes.values():
            lane.stop()
        self._budget.wake()
        self.stopping()

    def check_time(self, limit_s: float) -> None:
        """Abandon threads that spend over ``limit_s`` seconds on a tile, or that outlive a stopped request."""
        now = time.monotonic()
        for name, lane in self._lanes.items():
            since = lane.busy_since
            if since is not None and now - since > limit_s and name in self._running:
                hangs = DecodeError(
                    f"assemble of {name} worked on one part for longer than the limit of {limit_s:g} s; make it faster,"
                    " or raise the engine's option decode_timeout_s"
                )
                self.stop(blame(hangs, name))
                self._give_up(name)
        if self._stopped_at is not None and now - self._stopped_at > min(limit_s, ENDS_WITHIN_S):
            for thread_name in list(self._running):
                self._give_up(thread_name)

    def join_threads(self, timeout_s: float = ENDS_WITHIN_S) -> None:
        """Wait for all threads that were not abandoned, for at most ``timeout_s`` seconds in total."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads.values()):
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0))

    def discard(self) -> None:
        """Drop the results that were not fetched, and remove their files."""
        for lane in self._lanes.values():
            lane.close()

    def count_joined(self) -> None:
        """Count the tiles that every processor has joined, and free the memory budget of these tiles."""
        with self._lock:
            before, self.done = self.done, min(lane.joined for lane in self._lanes.values())
            done = self.done
            held = min(self._held, done - before)  # 0 if all places were freed at once
            self._held -= held
        if held:
            self._budget.give(self.nbytes, held)
        for number in range(before, done):
            self._observer.tile(self.pixels * (number + 1) // self.total - self.pixels * number // self.total)
        if done > before:
            self._wake()

    def _give_up(self, name: str | None) -> None:
        self._threads.pop(name, None)
        self._ended(name)

    def _ended(self, name: str | None) -> None:
        """Record that a thread has ended or was abandoned. After the last thread, free all tiles' memory budget."""
        with self._lock:
            if name not in self._running:
                return
            self._running.discard(name)
            last = not self._running
            held = self._held if last else 0
            self._held -= held
        if held:
            self._budget.give(self.nbytes, held)
        try:
            if last:
                self.context.run(add_stage, "request", self._began, total=self.total)
                if self.error is not None:
                    self.discard()
        finally:
            self._wake()

    def _make(self) -> None:
        """Prepare the tiles, and queue them for the engine. Runs in its own thread."""
        try:
            self.total, self.nbytes = self.measure()
            with closing(self.parts()) as parts:
                for part in parts:
                    self._offer(part)
        except Exception as error:  # noqa: BLE001 - any error fails only this request
            self.stop(error)
        except BaseException as error:  # noqa: BLE001 - a SystemExit must not end the caller's process
            self.stop(InputError(f"reading the input raised {type_and_message(error)}"))
        finally:
            self._ended(None)

    def _offer(self, block: PartInput) -> None:
        """Queue a block of tiles for the engine. A block without valid pixels is queued for joining instead."""
        with self._lock:
            if self.stopped:
                return
            if block.is_sent:
                self._ready.append(block)
        if block.is_sent:
            self._wake()
            return
        for lane in self._lanes.values():
            lane.put(block.parts)

    def _join(self, lane: Lane) -> None:
        """Join the tiles in a processor's queue. Runs in the processor's own thread."""
        try:
            with tracing(TRACED.get()):
                lane.result = self.join(lane.processor_name, lane)
                for _ in lane:  # the parts that it did not ask for
                    pass
            add_stage("finish", lane.joined_at, processor=lane.processor_name)
            self._joined_all()
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - any error fails only this request
            self.stop(blame(error, lane.processor_name))
        finally:
            if self.error is not None:
                lane.close()
            self._ended(lane.processor_name)

    def _joined_all(self) -> None:
        """Record that a processor has joined its tiles. After the last processor, save and deliver all results."""
        with self._lock:
            self._to_join -= 1
            if self._to_join or self.stopped:
                return
            self._delivering = True
        try:
            with stage("deliver"):
                delivered = self.deliver({name: lane.result for name, lane in self._lanes.items()})
        except BaseException as error:  # noqa: BLE001 - whatever it is, this request fails with it
            self.error = as_exception(error)
        else:
            for name, lane in self._lanes.items():
                lane.result = delivered[name]
