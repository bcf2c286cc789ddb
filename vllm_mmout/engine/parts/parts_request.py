"""PartedRequest: a request that is many of the engine's, its parts on their way in, and the lanes they come back on."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.stopwatch import FILES

if TYPE_CHECKING:
    from vllm_mmout.engine.parts.budgets import TileBudget
    from vllm_mmout.engine.parts.fan_out import FanOut
    from vllm_mmout.engine.request.request import Finish, PartInput
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.outputs.partial_images import PartialImages, PreviewRequest
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part


@dataclass(frozen=True, slots=True)
class Driver:
    """Who runs the parts of a request."""

    budget: TileBudget
    wake: Callable[[], None]
    """Called from any thread when there is something to do."""
    observer: Observer = SILENT
    growing: PartialImages | None = None
    """Shown the first pick's result."""
    request_id: str = ""
    traced: Traced | None = None
    """The request, where the engine is traced."""


class PartedRequest(ABC):
    """What a `Run` needs of a request to run its parts."""

    params: OutputParams

    @property
    @abstractmethod
    def tile_params(self) -> OutputParams:
        """The params of each part's request."""

    @property
    def pixels(self) -> int:
        """Pixels of its input; 0 where nobody counts them."""
        return 0

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was assumed about its input, in sentences."""
        return ()

    @property
    @abstractmethod
    def can_wait(self) -> bool:
        """Whether `pause` leaves little held, so that many may wait for their turn."""

    @abstractmethod
    def check_tiles(self, most: int) -> None:
        """Refuse, and close, a request of more parts than it may have."""

    @abstractmethod
    def made_in(self, folder: Path | None) -> Self:
        """The same with a folder for what lies on disk meanwhile, where it has none of its own."""

    def growing(self, notify: Callable[[], None], watch: PreviewRequest | None = None) -> PartialImages | None:
        """What makes the pictures of the growing result; None where it has none."""
        return None

    @abstractmethod
    def fan_out(self, driver: Driver) -> FanOut:
        """The request as its parts, not started."""

    def tile_finish(self, fan_out: FanOut, part: PartInput) -> Finish:
        """What is done with a part's decoded output: it is handed to those who join."""

        def finish(output: Any, pick: str | None) -> None:
            if pick is not None:
                fan_out.decoded(part, pick, output)

        return finish

    def outputs(self, results: Mapping[str, Any]) -> Any:
        """The results of the picks as the user asked for them: one alone, or a dict by name."""
        return dict(results) if isinstance(self.params.processor, tuple) else next(iter(results.values()))

    def pause(self) -> None:  # noqa: B027 - most hold nothing
        """Hold as little as can be until it is run."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds."""


class StoppedError(BaseException):
    """Ends a processor's ``assemble`` from outside; no author's ``except Exception`` meets it."""


class Lane:
    """Iterates over the parts of one pick as they come, in the thread that joins them."""

    def __init__(self, pick: str, fan_out: FanOut) -> None:
        self.pick = pick
        self.result: Any = None
        """What the processor made of them, until it is handed over."""
        self.busy_since: float | None = None
        """Since when the processor works on one part; None while it waits for one, and after the last."""
        self.joined_at = 0.0
        """When the last part so far had been joined, of a traced request."""
        self._fan_out = fan_out
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._taken = 0
        self._last: Part | None = None

    def put(self, part: Part) -> None:
        """Hand a part over; from any thread."""
        self._queue.put(part)

    def stop(self) -> None:
        """Let whoever waits for a part see that the request has ended."""
        self._queue.put(None)

    def handed_over(self) -> Any:
        """The result, which is the caller's from now on."""
        result, self.result = self.result, None
        return result

    def close(self) -> None:
        """Forget the result, and remove what it has on disk."""
        result = self.handed_over()
        if hasattr(result, "close"):
            result.close()

    def __iter__(self) -> Lane:
        return self

    def __next__(self) -> Part:
        since, self.busy_since = self.busy_since, None
        last, self._last = self._last, None
        if last is not None:
            if since is not None and self._fan_out.traced is not None:
                self._trace(self._fan_out.traced.of_tile(last.index), since)
            self._fan_out.joined(last)
        if self._taken and self._taken == self._fan_out.total:
            raise StopIteration
        part = self._queue.get()
        if part is None or self._fan_out.stopped:
            self._queue.put(None)  # for whoever swallows the error and asks again
            raise StoppedError
        self._taken += 1
        self._last = part
        self.busy_since = time.monotonic()
        return part

    def _trace(self, traced: Traced, since: float) -> None:
        """Tell of a part that is joined. Its blocks were written in between; here that comes last."""
        watch = FILES.get()
        self.joined_at = now = time.monotonic()
        written = 0.0 if watch is None else watch.take()
        traced.stage("blend", since, now - written, processor=self.pick)
        traced.stage("write", now - written, now, processor=self.pick)
