"""Observer, the callbacks that an engine calls to report its work, for example to metrics."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

Generate = TypeVar("Generate", bound=Callable[..., AsyncGenerator[Any, None]])
Failed = TypeVar("Failed", bound=BaseException)

OTHER = "other"

KINDS = (
    *("InputError", "OptionError", "SaveError", "ForwardError", "ReduceError", "DecodeError", "TokenError"),
    *("AbortedError", "RequestError", "EngineDeadError", "VLLMValidationError", "RateLimitError", OTHER),
)
"""Kinds of failures, by the name of the error class. An error of a subclass counts as its nearest base class here."""

_OF_PROCESSORS = ("ReduceError", "DecodeError")
_BLAMED, _COUNTED = "mmout_processor", "mmout_counted"


class Observer:
    """Base class of observers, whose callbacks do nothing. A subclass overrides them.

    The callbacks may be called from any thread during the work, so they must neither raise nor block.
    """

    def waits(self, nbytes: int) -> None:
        """Record an output of ``nbytes`` bytes that has arrived and waits to be decoded."""

    def settled(self, nbytes: int) -> None:
        """Record that an output of ``nbytes`` bytes no longer waits: it was decoded, failed or was cancelled."""

    def decoded(self, processor: str, seconds: float) -> None:
        """Record that a processor has decoded a request or a block of tiles. The time includes writing a file."""

    def tile(self, pixels: int) -> None:
        """Record that a tile was joined to its scene. ``pixels`` is the tile's share of the pixels of the scene."""

    def backlog(self, tiles: int, seconds: float) -> None:
        """Record the number of unfinished tiles, and the seconds that they are expected to take (0 if unknown)."""

    def failed(self, processor: str, kind: str) -> None:
        """Record that a request has failed.

        Args:
            processor: name of the processor that failed, or an empty string if no processor failed.
            kind: kind of the failure, one of `KINDS`.

        """


SILENT = Observer()
"""Observer that does nothing."""


def blame(error: Failed, processor: str) -> Failed:
    """Record in an error which processor failed, unless the error names a processor already. Return the error."""
    vars(error).setdefault(_BLAMED, processor)
    return error


def kind_of(error: BaseException) -> str:
    """Return which of `KINDS` an error is. The cancellation of a caller is an "AbortedError"."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "AbortedError"
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS), OTHER)


def mark_counted(error: BaseException) -> None:
    """Mark an error as reported to the observer, so that it is not reported again (see `was_counted`)."""
    vars(error)[_COUNTED] = True


def was_counted(error: BaseException) -> bool:
    """Return whether `mark_counted` has marked an error, or an error in its chain of causes."""
    cause: BaseException | None = error
    while cause is not None and _COUNTED not in vars(cause):
        cause = cause.__cause__
    return cause is not None


def counted(generate: Generate) -> Generate:
    """Decorate ``AsyncLLM.generate`` so that each call that ends without a result is counted once, by its error."""

    @functools.wraps(generate)
    async def counting(
        self: Any, prompt: Any, sampling_params: OutputParams | None = None, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        finished = False
        try:
            async with aclosing(generate(self, prompt, sampling_params, *args, **kwargs)) as results:
                async for result in results:
                    finished = result.finished
                    yield result
        except BaseException as error:
            if not finished:
                router = self.output_processor
                router.observer.failed(_blamed(error, router.binding.choice.pick, sampling_params), kind_of(error))
                mark_counted(error)
            raise

    return cast("Generate", counting)


def _blamed(error: BaseException, pick: Callable[..., tuple[str, ...]], params: OutputParams | None) -> str:
    """Return the name of the processor that failed, or an empty string if it is unknown.

    If the error of a processor does not name it, this is the only requested processor.
    """
    blamed: str | None = vars(error).get(_BLAMED)
    if blamed is not None or kind_of(error) not in _OF_PROCESSORS:
        return blamed or ""
    picks = pick(getattr(params, "processor", None))  # vLLM's sampling params lack this option
    return picks[0] if len(picks) == 1 else ""
