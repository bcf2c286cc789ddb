"""Run: one request of a user that is many of the engine's: a scene as tiles, a plugin's request as prompts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.request.request import PartInput, Request
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.scene.fan_out import FanOut

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.outputs.partial_images import PartialImages, PreviewRequest
    from vllm_mmout.params import OutputParams


class Run(FanOut):
    """One request of a user that is many of the engine's, from its opened input to its result.

    A subclass says what its parts are (`measure`, `parts`) and what becomes of their results (`join`, `deliver`), and
    closes its input (`close`).
    """

    can_wait = False
    """Whether `pause` closes the input, so that many runs may wait for their turn."""
    folder: Path | None = None
    """Folder for files while they are made, or None for the system's."""

    def __init__(
        self, request: Request, picks: Sequence[str], part_params: OutputParams, total: int = 0, nbytes: int = 1
    ) -> None:
        """Set up a run that is not started; ``part_params`` are the options of each part's request."""
        super().__init__(picks, total, nbytes)
        self.request = request
        self.traced = request.traced
        self.part_params = part_params
        self.limit_s = 0.0
        """Seconds that ``assemble`` may work on one part."""
        self.growing: PartialImages | None = None
        """Makes pictures of the growing result."""
        self._mark = wire.mark(part_params)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about assumptions made about the input."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Close the input."""

    def check_tiles(self, most: int) -> None:
        """Refuse, and close, a run of more than ``most`` parts."""

    def pause(self) -> None:
        """Close the input until the run starts, if `can_wait`."""

    def pictures(self, notify: Callable[[], None], watch: PreviewRequest | None) -> PartialImages | None:
        """Return what makes pictures of the growing result, or None if nobody asks for any."""
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
        """Connect the run to the engine's frontend that drives it.

        Args:
            budget: places of parts, which all runs share.
            wake: called from any thread when there is something to do.
            limit_s: seconds that ``assemble`` may work on one part.
            observer: hears of each joined part.
            watch: asks for pictures of the growing result; None if nobody may.

        """
        self._budget, self._wake, self.limit_s, self._observer = budget, wake, limit_s, observer
        self.growing = self.pictures(wake, watch)

    @property
    def progress(self) -> Progress:
        """Numbers of joined parts and of all."""
        return Progress(self.done, self.total)

    def part_request(self, part: PartInput, mark: list[int], request_id: str, engine: int | None = None) -> Request:
        """Return the engine's request of a part, behind single inputs, sent in the batch with this `Batch.mark`."""
        sent = part.without_prompt()
        return Request(
            self.part_params,
            request_id,
            self.request.lora_request,
            self.request.trace_headers,
            self.request.priority + 1,
            engine,
            traced=None if self.traced is None else self.traced.of_tile(part.index),
            prompt=part.prompt,
            mark={**self._mark, wire.BATCH: mark},
            pooling=part.pooling,
            finish=lambda output, pick: self.decoded(sent, str(pick), output),
            run=self,
            part=sent,
        )

    def answered(self, part: PartInput, answer: MultimodalRequestOutput | BaseException) -> None:
        """Take the engine's answer to a part, whose output `decoded` has had; an error ends the run."""
        error = answer if isinstance(answer, BaseException) else answer.error
        if error is not None:
            self.failed(part, error)

    def result(self) -> MultimodalRequestOutput:
        """Return the output of a finished run, which the caller owns from now on."""
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
