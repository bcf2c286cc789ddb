"""User request that is split into many engine requests, for example one per block of a scene's tiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.request.request import PartInput, Request
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.scene.fan_out import FanOut
from vllm_mmout.engine.scene.pace import Pace
from vllm_mmout.engine.trace import TRACED

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.outputs.partial_images import PartialImages, PreviewRequest
    from vllm_mmout.params import OutputParams


class Run(FanOut):
    """User request that is split into many engine requests. It owns the opened input and makes the result.

    A subclass makes the parts (`measure`, `parts`), turns their results into outputs (`join`, `deliver`), and closes
    the input (`close`).
    """

    can_wait = False
    """Whether the request can wait to start without holding a file open. If a file is open, `pause` closes it."""
    folder: Path | None = None
    """Folder for temporary files of the result, or None for the system's temporary folder."""

    def __init__(
        self,
        request: Request,
        processor_names: Sequence[str],
        part_params: OutputParams,
        total: int = 0,
        nbytes: int = 1,
        *,
        pace: Pace | None = None,
    ) -> None:
        """Set up the request without starting it.

        ``part_params`` are the options of each of its engine requests. ``pace`` has the measurements of earlier
        requests of this kind, if there were any.
        """
        super().__init__(processor_names, total, nbytes)
        self.request = request
        self.part_params = part_params
        self.pace = pace or Pace()
        """Measured time and output size per tile, which determine how many tiles the next block of tiles gets."""
        self.limit_s = 0.0
        """Longest time in seconds that a processor's ``assemble`` may work on one tile."""
        self.growing: PartialImages | None = None
        """Source of preview images of the unfinished result, or None if no previews are requested."""
        self._mark = wire.mark(part_params)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about the defaults that were assumed for the input."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Close the input."""

    def check_tiles(self, most: int) -> None:
        """Close the input and raise an error if the request has more than ``most`` tiles."""

    def pause(self) -> None:
        """Close the input if `can_wait` is True. It is opened again when the request starts."""

    def pictures(self, notify: Callable[[], None], watch: PreviewRequest | None) -> PartialImages | None:
        """Return a source of preview images of the unfinished result, or None if no previews are requested.

        ``notify`` is called for each image. ``watch`` is an object by which the client requests previews, or None.
        """
        return None

    def attach(
        self,
        budget: TileBudget,
        wake: Callable[[], None],
        *,
        limit_s: float,
        observer: Observer = SILENT,
        watch: PreviewRequest | None = None,
    ) -> None:
        """Give the request its memory budget, wake-up callback, time limit and observer before it is scheduled.

        Args:
            budget: limit for parts in flight, which all requests share.
            wake: function that any thread of this request calls when `Schedule.turn` must be called.
            limit_s: longest time that ``assemble`` may work on a part, in seconds.
            observer: observer that is notified of each joined part.
            watch: object by which a client requests previews of the unfinished result, or None.

        """
        self._budget, self._wake, self.limit_s, self._observer = budget, wake, limit_s, observer
        self.growing = self.pictures(wake, watch)

    @property
    def progress(self) -> Progress:
        """Number of tiles joined so far, and total number of tiles."""
        return Progress(self.done, self.total)

    def rendered(self, part: PartInput, engine: int) -> Any:
        """Return the input for a block of tiles, or another part of the request, in the form that vLLM takes.

        ``engine`` is the index of the engine that gets it.
        """
        return part.prompt

    def part_request(self, part: PartInput, request_id: str, engine: int | None = None) -> Request:
        """Create the engine request for a part of the user's request, usually a block of tiles.

        Its priority value is higher by 1 than the user's, so that requests without tiles run earlier.
        """
        sent = part.without_prompt()
        traced = self.context.get(TRACED)
        name = {} if traced is None else {wire.TRACED: (traced.request, part.index, len(part))}
        return Request(
            self.part_params,
            request_id,
            self.request.lora_request,
            self.request.trace_headers,
            self.request.priority + 1,
            engine,
            prompt=self.rendered(part, engine or 0),
            mark={**self._mark, **name},
            pooling=part.pooling,
            finish=lambda outputs, name: self.decoded(sent, str(name), outputs),
            run=self,
            part=sent,
        )

    def answered(self, part: PartInput, answer: MultimodalRequestOutput | BaseException) -> None:
        """Stop the request if ``answer``, the engine's output for a block of tiles, is an error."""
        error = answer if isinstance(answer, BaseException) else answer.error
        if error is not None:
            self.failed(part, error)

    def result(self) -> MultimodalRequestOutput:
        """Return the result of the finished request. The caller must close the outputs in the result."""
        outputs: Any = None
        if self.error is None:
            results = self.outcome()
            several = isinstance(self.request.params.processor, tuple)
            outputs = dict(results) if several else next(iter(results.values()))
        return MultimodalRequestOutput(
            self.request.request_id,
            outputs,
            [],
            0,
            finished=True,
            error=self.error,
            progress=self.progress,
            assumed=self.assumed,
        )
