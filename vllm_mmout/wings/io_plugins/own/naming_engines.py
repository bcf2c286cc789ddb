"""Subclasses of vLLM's engine and pooling classes that also run requests for the IO Processor plugin ``mmout``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.entrypoints.pooling.pooling.io_processor import PluginWithIOProcessorPlugins
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorRequest
from vllm.entrypoints.pooling.typing import OfflinePluginInputsContext

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.request.llm import BoundLLM
from vllm_mmout.wings.io_plugins.own.mmout_plugin import TASK, find_mmout_plugin, prompt_request

if TYPE_CHECKING:
    from tqdm.auto import tqdm
    from vllm.entrypoints.pooling.typing import (
        AnyOfflineInputsContext,
        AnyRenderParam,
        OfflineOutputsContext,
        PoolingServeContext,
        RequestFactory,
    )
    from vllm.lora.request import LoRARequest
    from vllm.outputs import PoolingRequestOutput
    from vllm.pooling_params import PoolingParams


class NamingAsyncLLM(BoundAsyncLLM):
    """vLLM's ``AsyncLLM``, whose ``encode`` also accepts requests for the IO Processor plugin ``mmout``."""

    def encode(  # noqa: PLR0917 - vLLM's signature
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
        reasoning_ended: bool | None = None,  # noqa: FBT001 - vLLM's signature
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Run the request for the plugin ``mmout`` that ``prompt`` holds. Encode any other prompt as vLLM does."""
        request = prompt_request(prompt, pooling_params)
        if request is not None:
            generate_options = {"lora_request": lora_request, "trace_headers": trace_headers, "priority": priority}
            return request.outputs(self, request_id, generate_options)
        return super().encode(
            prompt,
            pooling_params,
            request_id,
            lora_request,
            trace_headers,
            priority,
            tokenization_kwargs,
            reasoning_ended,
        )


class NamingLLM(BoundLLM):
    """Subclass of vLLM's ``LLM``. Its ``encode`` also runs requests ``{"data": ...}`` for the plugin ``mmout``."""

    pooling_io_processors: Any

    def encode(
        self,
        prompts: Any,
        pooling_params: Any = None,
        *,
        use_tqdm: bool | Callable[..., tqdm[Any]] = True,
        lora_request: LoRARequest | list[LoRARequest] | None = None,
        pooling_task: Any = None,
        **kwargs: Any,
    ) -> list[PoolingRequestOutput[Any]]:
        """Run ``{"data": ...}`` with the plugin ``mmout`` for the task "plugin". Encode other prompts as vLLM does."""
        plugin = find_mmout_plugin(self.pooling_io_processors)
        if plugin is not None and pooling_task == TASK and isinstance(prompts, dict) and "data" in prompts:
            return [plugin.run(self, prompts["data"], use_tqdm=use_tqdm, lora_request=lora_request)]
        return super().encode(
            prompts, pooling_params, use_tqdm=use_tqdm, lora_request=lora_request, pooling_task=pooling_task, **kwargs
        )


class RequestsBesidePlugin(PluginWithIOProcessorPlugins):
    """vLLM's pooling processor for plugins, changed so that requests without ``data`` bypass the plugin.

    vLLM accepts only ``data`` if a plugin is loaded: a raw request fails an assertion, and its client gets status 500.
    """

    def get_request_factory_online(self, ctx: PoolingServeContext[Any]) -> Sequence[AnyRenderParam]:
        """Prepare a request to vLLM's server. Use the plugin only if the request has the field ``data``."""
        if isinstance(ctx.request, IOProcessorRequest):
            return super().get_request_factory_online(ctx)
        return PoolingIOProcessor.get_request_factory_online(self, ctx)

    def post_process_online(self, ctx: PoolingServeContext[Any]) -> None:
        """Let the plugin process the outputs of a request with the field ``data``. Do nothing for other requests."""
        if isinstance(ctx.request, IOProcessorRequest):
            super().post_process_online(ctx)

    def get_request_factory_offline(self, ctx: AnyOfflineInputsContext) -> tuple[RequestFactory, int]:
        """Prepare requests to an ``LLM`` object. Use the plugin only if the requests have the field ``data``."""
        if isinstance(ctx, OfflinePluginInputsContext):
            return super().get_request_factory_offline(ctx)
        return PoolingIOProcessor.get_request_factory_offline(self, ctx)

    def post_process_offline(self, ctx: OfflineOutputsContext) -> list[PoolingRequestOutput[Any]]:
        """Return the outputs unchanged. Requests with ``data`` never get here: `NamingLLM.encode` runs them."""
        return ctx.outputs
