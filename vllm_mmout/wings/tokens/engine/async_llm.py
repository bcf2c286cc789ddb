"""``AsyncLLM`` on a bound engine that generates tokens: ``generate`` as vLLM's, with decoded media in its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineGenerateError

from vllm_mmout.engine.hooks.endpoint_plugin import is_switched_on
from vllm_mmout.engine.hooks.validation import as_client_error
from vllm_mmout.engine.observer import counted
from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine.llm import sampling_of
from vllm_mmout.wings.tokens.engine.outputs import without_error
from vllm_mmout.wings.tokens.engine.request import PLAIN, TokenRequest, sent_apart, with_request
from vllm_mmout.wings.tokens.engine.routed import TokenOutputProcessor


class BoundTokenAsyncLLM(AsyncLLM):
    """vLLM's asynchronous engine that generates tokens, some of which are decoded."""

    output_processor: TokenOutputProcessor
    mmout: dict[str, Any] | None
    """The fields of ``generation_config.json``, once asked for; vLLM reads them anew by each call."""

    @counted
    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As vLLM's; media among the tokens come as objects, with the last output of an answer.

        Args:
            prompt: as vLLM's.
            sampling_params: vLLM's ``SamplingParams``, or `OutputParams` with these as ``sampling``. On a server plain
                ones are those of vLLM's own routes, which have no place for media: these are not decoded then.
            request_id: as vLLM's.
            args: as vLLM's.
            kwargs: as vLLM's.

        Yields:
            vLLM's outputs: texts are without media tokens. ``multimodal`` of an answer that is finished
            (`MultimodalCompletionOutput`) holds its pictures and sounds; with ``chunk_seconds`` each output has in
            ``updates`` what of them is new.

        Raises:
            MMOutError: the params are refused, the tokens do not fit the model's layout, or a decoder failed. Closing
                or cancelling the generator aborts the request.

        """
        asked = TokenRequest(PLAIN, decode=not is_switched_on())
        if isinstance(sampling_params, OutputParams):
            asked = TokenRequest(sampling_params)
            binding = self.output_processor.binding
            try:
                sampling_params = sampling_of(asked.params, binding, self._mmout_default)
                if asked.params.chunk_seconds is not None:
                    await asyncio.to_thread(binding.prepare, asked.params)
            except MMOutError as error:
                raise as_client_error(error) from None
        if isinstance(sampling_params, SamplingParams):
            sampling_params = with_request(sampling_params, asked)
        results = super().generate(prompt, sampling_params, request_id, *args, **kwargs)
        try:
            async with aclosing(results):
                async for result in results:
                    yield without_error(result)
        except EngineGenerateError as error:
            if isinstance(error.__cause__, MMOutError):
                raise error.__cause__ from error.__cause__.__cause__
            raise

    def _mmout_default(self) -> SamplingParams:
        """The model's own sampling params."""
        if self.mmout is None:
            self.mmout = self.vllm_config.model_config.get_diff_sampling_param()
        return SamplingParams.from_optional(**self.mmout)

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's."""
        with sent_apart(params) as sent:
            return await super().add_request(request_id, prompt, sent, *args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM's, and end the decoders' threads."""
        self.output_processor.close()
        super().shutdown(*args, **kwargs)
