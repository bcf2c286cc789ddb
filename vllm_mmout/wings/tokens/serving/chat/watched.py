"""WatchedEngine: the engine as vLLM's handler of one chat sees it; media of what it generates are kept aside."""

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
    """All that the engine has, but that it generates with media."""

    def __init__(
        self, engine: BoundTokenAsyncLLM, processor: str, chunk_seconds: float | None = None, output: str | None = None
    ) -> None:
        self._engine = engine
        self._processor = processor
        self._chunk_seconds = chunk_seconds
        """Of the pieces in which sounds are taken; None: media are taken when they are whole."""
        self._output = output
        """Which whole media are asked for; None: none in particular."""
        self._media: defaultdict[int, list[Any]] = defaultdict(list)
        """Decoded media that nobody has taken, by the index of their answer."""
        self.failure: ApiError | None = None
        """Why nothing more is generated, where that is of ours."""
        self.partial: set[int] = set()
        """The answers that ended inside a medium."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As the engine's own; media of an output are here before it is yielded."""
        params = OutputParams(
            processor=self._processor,
            sampling=sampling_params,
            chunk_seconds=self._chunk_seconds,
            output=self._output,
        )
        results = self._engine.generate(prompt, params, request_id, *args, **kwargs)
        try:
            async with aclosing(results), aclosing(self._without_silence(results)) as outputs:
                async for output in outputs:
                    yield output
        except MMOutError as error:
            self.failure = generation_error(error, request_id)
            raise self.failure from error

    def take(self, index: int) -> list[Any]:
        """The media of an answer that came since the last call, in their order."""
        return self._media.pop(index, [])

    async def _without_silence(self, results: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
        """The same outputs, those that have nothing but media tokens merged into the next one.

        A picture is thousands of tokens, each of which would be an event without text. The first output goes on at
        once: by it a client sees that it is being answered.
        """
        held: RequestOutput | None = None
        began = False
        async for output in results:
            brought = self._keep(output)
            if held is None:
                held = output
            else:
                held.add(output, aggregate=True)
            silent = all(not answer.text and answer.finish_reason is None for answer in held.outputs)
            if began and silent and not brought:
                continue
            yield held
            held, began = None, True
        if held is not None:
            yield held

    def _keep(self, output: RequestOutput) -> bool:
        """Take the media of an output; says whether there were any."""
        brought = False
        for answer in output.outputs:
            whole = getattr(answer, "multimodal", ())
            if any(getattr(one, "partial", False) for one in whole):
                self.partial.add(answer.index)
            media = whole if self._chunk_seconds is None else getattr(answer, "updates", ())
            self._media[answer.index] += media
            brought |= bool(media)
        return brought
