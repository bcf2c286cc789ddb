"""Observer: what a bound engine says of its work to whoever counts it."""

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
"""Kinds of failures: classes of errors, a subclass counting as the nearest of them."""

_OF_PROCESSORS = ("ReduceError", "DecodeError")
_BLAMED, _COUNTED = "mmout_processor", "mmout_counted"


class Observer:
    """Hears of an engine's work and counts nothing; those who do override its methods.

    They are called from any thread, in the middle of the work: they must neither raise nor wait.
    """

    def waits(self, nbytes: int) -> None:
        """A request's output of so many bytes came from the engine and is to be decoded."""

    def settled(self, nbytes: int) -> None:
        """Such a request has its result, has failed, or was cancelled."""

    def decoded(self, processor: str, seconds: float) -> None:
        """A processor made a result of the output of one request or tile, written where that was asked."""

    def tile(self, pixels: int) -> None:
        """One more tile is part of its scene's result, and with it so many pixels of the scene."""

    def backlog(self, tiles: int, seconds: float) -> None:
        """So many tiles are taken in and not done, and take so many seconds as far as is known; 0 where nothing is."""

    def failed(self, processor: str, kind: str) -> None:
        """A user's request failed, of a kind of `KINDS`; no processor is to blame where its name is empty."""


SILENT = Observer()


def blame(error: Failed, processor: str) -> Failed:
    """Have the processor of this name be counted as the one that failed; gives the error back."""
    vars(error).setdefault(_BLAMED, processor)
    return error


def kind_of(error: BaseException) -> str:
    """Which of `KINDS` an error is; a caller who has gone away aborted its request."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "AbortedError"
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS), OTHER)


def mark_counted(error: BaseException) -> None:
    """Have an error be known as counted."""
    vars(error)[_COUNTED] = True


def was_counted(error: BaseException) -> bool:
    """Whether an error, or what it was made of, was counted when ``generate`` ended with it."""
    cause: BaseException | None = error
    while cause is not None and _COUNTED not in vars(cause):
        cause = cause.__cause__
    return cause is not None


def counted(generate: Generate) -> Generate:
    """Have each call of ``AsyncLLM.generate`` that ends without its result be counted, once, by what it ended with."""

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
    """Name of the processor that failed; of what does not say which, the only one that was asked for."""
    named: str | None = vars(error).get(_BLAMED)
    if named is not None or kind_of(error) not in _OF_PROCESSORS:
        return named or ""
    picks = pick(getattr(params, "processor", None))  # vLLM's sampling params name none
    return picks[0] if len(picks) == 1 else ""
