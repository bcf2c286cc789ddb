"""Callbacks through which an engine reports its work, for example to metrics."""

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
"""Kinds of failures, which metrics count separately. A kind is the name of an error class, or "other".

An error has the kind of its class, or else of the nearest base class in this tuple.
"""

_OF_PROCESSORS = ("ReduceError", "DecodeError")
_BLAMED, _COUNTED = "mmout_processor", "mmout_counted"


class Observer:
    """Base class for receivers of an engine's reports, such as metrics. Its methods do nothing.

    The callbacks may be called from any thread during the work, so they must neither raise nor block.
    """

    def waits(self, nbytes: int) -> None:
        """Record that an output of ``nbytes`` bytes has arrived from the engine and waits to be decoded."""

    def settled(self, nbytes: int) -> None:
        """Record that an output of ``nbytes`` bytes was decoded, failed or was cancelled, so it no longer waits."""

    def decoded(self, processor: str, seconds: float) -> None:
        """Record how long a processor took to decode a request or a block of tiles, including writing a file."""

    def tile(self, pixels: int) -> None:
        """Record that a tile was joined to the result of its scene.

        ``pixels`` is the number of the scene's pixels divided by the number of its tiles.
        """

    def backlog(self, tiles: int, seconds: float) -> None:
        """Record the number of unfinished tiles, and the seconds that they are expected to take (0 if unknown)."""

    def failed(self, processor: str, kind: str) -> None:
        """Record that a request has failed.

        Args:
            processor: name of the processor that failed, or an empty string if no processor failed.
            kind: kind of the failure, one of `KINDS`.

        """


SILENT = Observer()
"""Observer that ignores every report, the default of an engine."""


def blame(error: Failed, processor: str) -> Failed:
    """Record in an error which processor failed, unless the error names a processor already. Return the error."""
    vars(error).setdefault(_BLAMED, processor)
    return error


def kind_of(error: BaseException) -> str:
    """Return the kind of an error, a name in `KINDS`. A cancelled call counts as an "AbortedError"."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "AbortedError"
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS), OTHER)


def mark_counted(error: BaseException) -> None:
    """Mark an error as already reported to the observer, so that it is not reported again."""
    vars(error)[_COUNTED] = True


def was_counted(error: BaseException) -> bool:
    """Return whether ``error`` was already reported to the observer as a failure.

    `mark_counted` has then marked ``error`` or one of its causes (``__cause__``).
    """
    cause: BaseException | None = error
    seen: set[int] = set()  # an author's error may be its own cause
    while cause is not None and id(cause) not in seen:
        if _COUNTED in vars(cause):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def counted(generate: Generate) -> Generate:
    """Decorate ``AsyncLLM.generate`` to report each failed or aborted call to the engine's observer.

    The error is marked, so that the same failure is not reported again.
    """

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


def _blamed(error: BaseException, pick_processors: Callable[..., tuple[str, ...]], params: OutputParams | None) -> str:
    """Return the name of the processor that caused an error, or an empty string if it is unknown.

    If the error of a processor does not name it, this is the only requested processor.
    """
    blamed: str | None = vars(error).get(_BLAMED)
    if blamed is not None or kind_of(error) not in _OF_PROCESSORS:
        return blamed or ""
    picks = pick_processors(getattr(params, "processor", None))  # vLLM's sampling params lack this option
    return picks[0] if len(picks) == 1 else ""
