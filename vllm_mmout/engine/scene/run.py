"""Run, a user request that consists of many engine requests, such as the tiles of a scene or a plugin's prompts."""

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
    """User request that consists of many engine requests, from its opened input to its result.

    A subclass makes the parts (`measure`, `parts`), turns their results into outputs (`join`, `deliver`), and closes
    the input (`close`).
    """

    can_wait = False
    """Whether `pause` closes the input, so that a run holds no open file before it starts."""
    folder: Path | None = None
    """Folder for unfinished files, or None for the system's temporary folder."""

    def __init__(
        self, request: Request, picks: Sequence[str], part_params: OutputParams, total: int = 0, nbytes: int = 1
    ) -> None:
        """Set up a run without starting it. ``part_params`` are the options of each part's request."""
        super().__init__(picks, total, nbytes)
        self.request = request
        self.part_params = part_params
        self.pace = Pace()
        """Size of the next block, as far as the run's tiles are sent in blocks."""
        self.limit_s = 0.0
        """Longest time that ``assemble`` may work on a part, in seconds."""
        self.growing: PartialImages | None = None
        """Producer of preview images of the unfinished result, or None if no previews are requested."""
        self._mark = wire.mark(part_params)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about assumptions made about the input."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Close the input."""

    def check_tiles(self, most: int) -> None:
        """Close the run and raise if it has more than ``most`` parts."""

    def pause(self) -> None:
        """Close the input until the run starts, if `can_wait`."""

    def pictures(self, notify: Callable[[], None], watch: PreviewRequest | None) -> PartialImages | None:
        """Return a producer of preview images of the unfinished result, or None if no previews are requested."""
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
        """Connect the run to the process that schedules it.

        Args:
            budget: limit for parts in flight, which all runs share.
            wake: function that any thread of the run calls when `Schedule.turn` must be called.
            limit_s: longest time that ``assemble`` may work on a part, in seconds.
            observer: observer that is notified of each joined part.
            watch: object by which a client requests previews of the unfinished result, or None.

        """
        self._budget, self._wake, self.limit_s, self._observer = budget, wake, limit_s, observer
        self.growing = self.pictures(wake, watch)

    @property
    def progress(self) -> Progress:
        """Number of joined parts and number of all parts."""
        return Progress(self.done, self.total)

    def rendered(self, part: PartInput) -> Any:
        """Return the engine's input for a block of tiles or a single part."""
        return part.prompt

    def part_request(self, part: PartInput, request_id: str, engine: int | None = None) -> Request:
        """Return the engine request for a block of tiles or a single part.

        Its priority value is higher by 1 than the user's, so that requests without tiles run earlier.
        """
        sent = part.without_input()
        traced = self.context.get(TRACED)
        name = {} if traced is None else {wire.TRACED: (traced.request, part.index, len(part))}
        return Request(
            self.part_params,
            request_id,
            self.request.lora_request,
            self.request.trace_headers,
            self.request.priority + 1,
            engine,
            prompt=self.rendered(part),
            mark={**self._mark, **name},
            pooling=part.pooling,
            finish=lambda outputs, pick: self.decoded(sent, str(pick), outputs),
            run=self,
            part=sent,
        )

    def answered(self, part: PartInput, answer: MultimodalRequestOutput | BaseException) -> None:
        """Stop the run if the engine answered a block or part with an error. Outputs have already gone to `decoded`."""
        error = answer if isinstance(answer, BaseException) else answer.error
        if error is not None:
            self.failed(part, error)

    def result(self) -> MultimodalRequestOutput:
        """Return the result of a finished run. The caller must close its outputs."""
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
