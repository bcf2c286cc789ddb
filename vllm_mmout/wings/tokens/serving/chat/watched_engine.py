"""Collect the pictures and sounds that the engine generates for one chat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.serving.service import generation_error

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

    from vllm_mmout.serving.errors import ApiError
    from vllm_mmout.wings.tokens.engine.async_llm import BoundTokenAsyncLLM


class WatchedEngine:
    """Engine wrapper for one chat. It collects the pictures and sounds of the chat's answers."""

    def __init__(
        self, engine: BoundTokenAsyncLLM, processor: str, chunk_seconds: float | None = None, output: str | None = None
    ) -> None:
        self._engine = engine
        self._processor = processor
        self._chunk_seconds = chunk_seconds
        """Length in seconds of the sound chunks to collect. If None, only complete pictures and sounds are
        collected."""
        self._output = output
        """Value of `OutputParams.output` for all answers of the chat: "media" or "mixed" to allow only complete
        pictures and sounds, or None to let answers contain any tokens."""
        self._media: defaultdict[int, list[Any]] = defaultdict(list)
        """Collected pictures and sounds that `take` has not returned yet, by the index of their answer."""
        self.failure: ApiError | None = None
        """Error that ended the generation, or None."""
        self.partial: set[int] = set()
        """Indices of the answers that ended before a picture or sound in them was complete."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate answers with the wrapped engine. After each output, `take` returns the new pictures and sounds."""
        params = OutputParams(
            processor=self._processor,
            sampling=sampling_params,
            chunk_seconds=self._chunk_seconds,
            output=self._output,
        )
        results = self._engine.generate(prompt, params, request_id, *args, **kwargs)
        try:
            async with aclosing(results), aclosing(self._merge_media_only(results)) as outputs:
                async for output in outputs:
                    yield output
        except MMOutError as error:
            self.failure = generation_error(error, request_id)
            raise self.failure from error

    def take(self, index: int) -> list[Any]:
        """Return the pictures and sounds of answer ``index`` that were collected since the last call, in order."""
        return self._media.pop(index, [])

    async def _merge_media_only(self, results: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
        """Yield the engine's outputs. An output that has only picture or sound tokens is merged into the next output.

        A picture has thousands of tokens, each of which would become an event without text. An output that completes
        a picture, sound or chunk is yielded at once. So is the first output, to show the client that the answer has
        begun.
        """
        held: RequestOutput | None = None
        began = False
        async for output in results:
            has_media = self._keep(output)
            if held is None:
                held = output
            else:
                held.add(output, aggregate=True)
            silent = all(not answer.text and answer.finish_reason is None for answer in held.outputs)
            if began and silent and not has_media:
                continue
            yield held
            held, began = None, True
        if held is not None:
            yield held

    def _keep(self, output: RequestOutput) -> bool:
        """Collect the pictures and sounds of an output. Return whether the output has any."""
        has_media = False
        for answer in output.outputs:
            whole = getattr(answer, "multimodal", ())
            if any(getattr(medium, "partial", False) for medium in whole):
                self.partial.add(answer.index)
            media = whole if self._chunk_seconds is None else getattr(answer, "updates", ())
            self._media[answer.index] += media
            has_media |= bool(media)
        return has_media
