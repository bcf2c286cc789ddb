"""One user's request as many of the engine's: parts are made, run, decoded, and joined into one result as they come.

A part is a tile of a scene. One thread makes the parts, ahead of the engine as far as the budget lets it; one a pick
runs the processor's ``assemble``. In between, parts are requests like any other, which the `Schedule` takes here.

The thread that drives may be interrupted anywhere: what it shares with the others has locks of C alone, which no
interrupt leaves held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.observer import blame
from vllm_mmout.engine.parts.parts_request import Lane, StoppedError
from vllm_mmout.engine.threads import background_thread
from vllm_mmout.errors import AbortedError, DecodeError, InputError, as_exception, type_and_message
from vllm_mmout.processors.base import Part
from vllm_mmout.stopwatch import FILES, Stopwatch

if TYPE_CHECKING:
    from vllm_mmout.engine.parts.budgets import TileBudget
    from vllm_mmout.engine.request.request import PartInput
    from vllm_mmout.engine.trace import Traced

ENDS_WITHIN_S = 30.0
"""Seconds that threads of a request that was stopped are waited for."""


@dataclass(eq=False)
class FanOut:
    """One request of a user that is many of the engine's."""

    parts: Generator[PartInput, None, None]
    """Makes the parts, one whenever it is asked; closed at the end."""
    total: int
    """Number of parts, at least 1; 0 until it is known, where only ``measure`` says it."""
    nbytes: int
    """Bytes of one part's input, at most."""
    picks: Sequence[str]
    """Names of the processors whose results are wanted."""
    join: Callable[[str, Iterator[Part]], Any]
    """Takes a pick's name and its parts as they come; returns the result."""
    deliver: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Writes the results of all picks where asked, and returns them; nothing can fail any more then but this."""
    budget: TileBudget
    wake: Callable[[], None]
    """Called from any thread when there is something to do."""
    count: Callable[[int], None] = lambda _: None
    """Called from any thread, once with each number of parts that have been joined, from 1 on."""
    measure: Callable[[], tuple[int, int]] | None = None
    """Says ``total`` and ``nbytes`` where they are not known before, in the thread that makes the parts."""
    at_stop: Callable[[], None] = lambda: None
    """Called from any thread when the request has failed or was aborted, perhaps more than once."""
    traced: Traced | None = None

    def __post_init__(self) -> None:
        self.done = 0
        """Parts that have been joined, those that were not sent among them."""
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._stopped_at: float | None = None
        self._delivering = False
        self._ready: list[PartInput] = []
        self._open: dict[int, int] = {}
        """Picks that have yet to join a part, by its index."""
        self._held = 0
        """Places that are held in the budget, one for each part until it is joined."""
        self._lanes = {pick: Lane(pick, self) for pick in self.picks}
        self._to_join = len(self._lanes)
        self._running: set[str | None] = {None, *self._lanes}
        """The threads that have not ended, by pick; None makes the parts."""
        self._threads: dict[str | None, threading.Thread] = {}
        self._began = 0.0

    def start(self) -> None:
        """Start the threads; where the system has none to spare, its error goes on and none is left."""
        self._began = time.monotonic()
        works: dict[str | None, Callable[[], None]] = {None: self._read}
        works |= {pick: partial(self._run, lane) for pick, lane in self._lanes.items()}
        try:
            for name, work in works.items():
                self._threads[name] = thread = background_thread(work, "join" if name else "read")
                thread.start()
        except BaseException as error:
            self.stop(error)
            for name in works:
                if name not in self._threads or self._threads[name].ident is None:
                    self._ended(name)
            raise

    @property
    def stopped(self) -> bool:
        """Whether it failed or was aborted."""
        return self._stopped_at is not None

    @property
    def reading(self) -> bool:
        """Whether more parts may become ready; not while nobody knows how many there are."""
        return None in self._running and not self.stopped and self.total > 0

    @property
    def finished(self) -> bool:
        """Whether it has ended, and nothing of it is left: the outcome is known."""
        return not self._running

    def outcome(self) -> Mapping[str, Any]:
        """The result of each pick, which is the caller's from now on; raises what the request failed with."""
        if self.error is not None:
            raise self.error
        return {pick: lane.handed_over() for pick, lane in self._lanes.items()}

    def take(self) -> list[PartInput]:
        """The parts to send now."""
        with self._lock:
            ready, self._ready = self._ready, []
        return ready

    def decoded(self, part: PartInput, pick: str, output: Any) -> None:
        """Hand on what a processor decoded; called from the thread that did."""
        self._lanes[pick].put(Part(part.index, part.window, output, part.valid))

    def failed(self, part: PartInput, error: BaseException) -> None:
        """Say that a part failed, which ends the request."""
        self.stop(part.named_in(error))

    def stop(self, error: BaseException | None = None) -> None:
        """End it, if it has not ended and its results are not being written; the threads end soon after."""
        with self._lock:
            if self._delivering:
                return
            if not self.stopped and self._running:
                aborted = AbortedError("the request was aborted before its result was there")
                self.error = self.error or as_exception(error or aborted)
            self._stopped_at = self._stopped_at or time.monotonic()
            self._ready.clear()
        for lane in self._lanes.values():
            lane.stop()
        self.budget.wake()
        self.at_stop()

    def check_time(self, limit_s: float) -> None:
        """Give threads up that hang: in ``assemble`` on one part for longer than the limit, or after the end."""
        now = time.monotonic()
        for pick, lane in self._lanes.items():
            since = lane.busy_since
            if since is not None and now - since > limit_s and pick in self._running:
                hangs = DecodeError(
                    f"assemble of {pick} worked on one part for longer than the limit of {limit_s:g} s; make it faster,"
                    " or raise the engine's option decode_timeout_s"
                )
                self.stop(blame(hangs, pick))
                self._give_up(pick)
        if self._stopped_at is not None and now - self._stopped_at > min(limit_s, ENDS_WITHIN_S):
            for name in list(self._running):
                self._give_up(name)

    def join_threads(self, timeout_s: float = ENDS_WITHIN_S) -> None:
        """Wait for the threads to end, but for those that were given up, no longer than the time given."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads.values()):
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0))

    def close(self) -> None:
        """Forget results that nobody takes, and remove what they have on disk."""
        for lane in self._lanes.values():
            lane.close()

    def joined(self, part: Part) -> None:
        """A pick is done with a part."""
        with self._lock:
            self._open[part.index] -= 1
            if self._open[part.index]:
                return
            del self._open[part.index]
            self.done += 1
            done = self.done
            held = min(self._held, 1)  # none: given back as a whole already
            self._held -= held
        if held:
            self.budget.give(self.nbytes)
        self.count(done)
        self.wake()

    def _give_up(self, name: str | None) -> None:
        self._threads.pop(name, None)
        self._ended(name)

    def _ended(self, name: str | None) -> None:
        """A thread has ended, or is given up; the last one leaves nothing held."""
        with self._lock:
            if name not in self._running:
                return
            self._running.discard(name)
            last = not self._running
            held = self._held if last else 0
            self._held -= held
        if held:
            self.budget.give(self.nbytes, held)
        if last and self.traced is not None:
            self.traced.stage("request", self._began, tiles=self.total)
        try:
            if last and self.error is not None:
                self.close()
        finally:
            self.wake()

    def _read(self) -> None:
        """Make the parts, each when there is a place for it."""
        try:
            with closing(self.parts):
                if self.measure is not None:
                    self.total, self.nbytes = self.measure()
                for _ in range(self.total):
                    if not self.budget.take(self.nbytes, lambda: self.stopped):
                        return
                    with self._lock:
                        self._held += 1
                    self._hand_on(next(self.parts))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
            self.stop(error)
        except BaseException as error:  # noqa: BLE001 - a SystemExit must not leave the caller's process
            self.stop(InputError(f"reading the input raised {type_and_message(error)}"))
        finally:
            self._ended(None)

    def _hand_on(self, part: PartInput) -> None:
        with self._lock:
            if self.stopped:
                return
            self._open[part.index] = len(self._lanes)
            if part.prompt is not None:
                self._ready.append(part)
        if part.prompt is not None:
            self.wake()
            return
        for lane in self._lanes.values():
            lane.put(Part(part.index, part.window, None, part.valid))

    def _run(self, lane: Lane) -> None:
        """Join the parts of a pick."""
        if self.traced is not None:
            FILES.set(Stopwatch())
        try:
            lane.result = self.join(lane.pick, lane)
            for _ in lane:  # what it did not want
                pass
            if self.traced is not None:
                self.traced.stage("finish", lane.joined_at, processor=lane.pick)
            self._joined_all()
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this request's
            self.stop(blame(error, lane.pick))
        finally:
            if self.error is not None:
                lane.close()
            self._ended(lane.pick)

    def _joined_all(self) -> None:
        """A pick has its result; the last one delivers those of all."""
        with self._lock:
            self._to_join -= 1
            if self._to_join or self.stopped:
                return
            self._delivering = True
        began = time.monotonic()
        try:
            delivered = self.deliver({pick: lane.result for pick, lane in self._lanes.items()})
        except BaseException as error:  # noqa: BLE001 - as above
            self.error = as_exception(error)
        else:
            for pick, lane in self._lanes.items():
                lane.result = delivered[pick]
            if self.traced is not None:
                self.traced.stage("deliver", began)
