"""``AsyncLLM`` on a bound engine: ``generate`` yields the decoded object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from vllm.pooling_params import PoolingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine import marker
from vllm_mmout.engine.credits import Credits
from vllm_mmout.engine.inputs import Prepared, prepare
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.engine.routed import ADMISSION, Admission, RoutedOutputProcessor
from vllm_mmout.engine.validation import as_client_error
from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


class BoundAsyncLLM(AsyncLLM):
    """vLLM's asynchronous engine whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout_credits: Credits
    mmout_readers: asyncio.Semaphore
    """Inputs that may be read, or wait for their credit, at once."""
    mmout_shut_down: bool = False

    async def generate(  # type: ignore[override]  # the result of a bound engine is no text
        self,
        prompt: Any,
        sampling_params: OutputParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run the model on one input and decode what it emits.

        Args:
            prompt: one input, in any form that ``LLM.generate`` takes.
            sampling_params: options of the request.
            request_id: name of the request, for ``abort``; by default a random one.
            lora_request: LoRA adapter.
            trace_headers: as vLLM's.
            priority: the lower the earlier (with the priority scheduling policy).

        Yields:
            The finished result.

        Raises:
            MMOutError: the input or the params are refused, or the request failed. Closing or cancelling the generator
                aborts the request.

        """
        params = OutputParams() if sampling_params is None else sampling_params
        request_id = request_id or uuid4().hex
        async with AsyncExitStack() as held:
            async with self.mmout_readers:  # so that what waits for a credit is bounded too
                prepared = await self._mmout_prepare(prompt, params)
                await held.enter_async_context(self.mmout_credits.held(prepared.nbytes))
            pooling = PoolingParams(task=await self._mmout_task(), extra_kwargs=marker.mark(params))
            admission = Admission(prepared.finish)
            token = ADMISSION.set(admission)
            try:
                queue = await self.add_request(
                    request_id,
                    prepared.prompt,
                    pooling,
                    lora_request=lora_request,
                    trace_headers=trace_headers,
                    priority=priority,
                )
                result = cast("MultimodalRequestOutput", await queue.get())
            except EngineDeadError:
                raise
            except BaseException:
                if admission.internal_id is not None:
                    await self.abort(admission.internal_id, internal=True)
                raise
            finally:
                ADMISSION.reset(token)
        if result.error is not None:
            raise result.error
        yield result

    async def _mmout_prepare(self, prompt: Any, params: OutputParams) -> Prepared:
        try:
            return await asyncio.to_thread(prepare, self.output_processor.binding, prompt, params)
        except MMOutError as error:
            raise as_client_error(error) from error.__cause__

    async def _mmout_task(self) -> Any:
        return self.model_config.get_pooling_task(await self.get_supported_tasks())

    def shutdown(self, timeout: float | None = None) -> None:
        """As vLLM's; pending decodes fail with an AbortedError. A second call does nothing."""
        if not self.mmout_shut_down:
            self.mmout_shut_down = True
            self.output_processor.close()
            super().shutdown(timeout)
