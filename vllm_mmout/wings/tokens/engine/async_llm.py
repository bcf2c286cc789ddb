"""Decode pictures and sounds in the answers of vLLM's ``AsyncLLM``, for models that generate them as tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineGenerateError

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.engine.hooks.endpoint_plugin import is_switched_on
from vllm_mmout.engine.observer import counted
from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine.llm import sampling_of
from vllm_mmout.wings.tokens.engine.outputs import with_error_field
from vllm_mmout.wings.tokens.engine.request import PLAIN, TokenRequest, with_request, without_own_options
from vllm_mmout.wings.tokens.engine.routed import TokenOutputProcessor


class BoundTokenAsyncLLM(AsyncLLM):
    """vLLM's ``AsyncLLM``, which also decodes the pictures and sounds that a model generates as tokens."""

    output_processor: TokenOutputProcessor
    mmout: dict[str, Any] | None
    """Data that this package adds to vLLM's ``AsyncLLM``: the default sampling values of the model.

    None before the first use."""

    def mmout_bound(self) -> None:
        """Initialize an ``AsyncLLM`` object after its class was changed to this class."""
        self.mmout = None

    @counted
    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate answers, as vLLM's method does. The last output of an answer holds its pictures and sounds.

        Closing or cancelling the generator aborts the request.

        Args:
            prompt: prompt, as in vLLM.
            sampling_params: vLLM's ``SamplingParams``, or `OutputParams` that hold them as ``sampling``. On a server,
                plain ``SamplingParams`` come from vLLM's own routes, which cannot return media. Their media are not
                decoded.
            request_id: id of the request, as in vLLM.
            args: further arguments of vLLM's ``generate``.
            kwargs: further arguments of vLLM's ``generate``.

        Yields:
            vLLM's outputs, with texts that have no media tokens. ``multimodal`` of a finished answer
            (`MultimodalCompletionOutput`) holds its pictures and sounds. With ``chunk_seconds``, ``updates`` of each
            output holds the new chunks of sounds.

        Raises:
            MMOutError: the params are refused, the tokens do not fit the model's layout, or a decoder failed.

        """
        token_request = TokenRequest(PLAIN, decode=not is_switched_on())
        if isinstance(sampling_params, OutputParams):
            token_request = TokenRequest(sampling_params)
            binding = self.output_processor.binding
            try:
                sampling_params = sampling_of(token_request.params, binding, self._mmout_default)
                if token_request.params.chunk_seconds is not None:
                    await asyncio.to_thread(binding.prepare, token_request.params)
            except MMOutError as error:
                raise as_client_error(error) from None
        if isinstance(sampling_params, SamplingParams):
            sampling_params = with_request(sampling_params, token_request)
        results = super().generate(prompt, sampling_params, request_id, *args, **kwargs)
        try:
            async with aclosing(results):
                async for result in results:
                    yield with_error_field(result)
        except EngineGenerateError as error:
            if isinstance(error.__cause__, MMOutError):
                raise error.__cause__ from error.__cause__.__cause__
            raise

    def _mmout_default(self) -> SamplingParams:
        """Return the model's default sampling params."""
        if self.mmout is None:
            self.mmout = self.vllm_config.model_config.get_diff_sampling_param()
        return SamplingParams.from_optional(**self.mmout)

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Add a request, as vLLM does, but do not send this package's own options to the engine process."""
        with without_own_options(params) as sent:
            return await super().add_request(request_id, prompt, sent, *args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Shut down vLLM's engine, and end the threads that decode pictures and sounds."""
        self.output_processor.close()
        super().shutdown(*args, **kwargs)
