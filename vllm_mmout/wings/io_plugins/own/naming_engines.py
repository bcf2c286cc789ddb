"""Bound engines with the IO Processor plugin ``mmout``, and what vLLM makes of pooling requests on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.entrypoints.pooling.pooling.io_processor import PluginWithIOProcessorPlugins
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorRequest
from vllm.entrypoints.pooling.typing import OfflinePluginInputsContext

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM, Ways
from vllm_mmout.engine.request.llm import BoundLLM
from vllm_mmout.wings.io_plugins.own.mmout_plugin import TASK, named_request, naming_plugin

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
    """A bound ``AsyncLLM`` whose ``encode`` runs what a prompt of the plugin names."""

    def encode(  # noqa: PLR0917 - as vLLM's
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
        reasoning_ended: bool | None = None,  # noqa: FBT001 - as vLLM's
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """As vLLM's; a request that a prompt names is run by `generate`."""
        named = named_request(prompt, pooling_params)
        if named is not None:
            return named.outputs(self, request_id, Ways(lora_request, trace_headers, priority))
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
    """A bound ``LLM``, likewise."""

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
        """As vLLM's; ``{"data": ...}`` is run by `generate`."""
        plugin = naming_plugin(self.pooling_io_processors)
        if plugin is not None and pooling_task == TASK and isinstance(prompts, dict) and "data" in prompts:
            return [plugin.run(self, prompts["data"], use_tqdm=use_tqdm, lora_request=lora_request)]
        return super().encode(
            prompts, pooling_params, use_tqdm=use_tqdm, lora_request=lora_request, pooling_task=pooling_task, **kwargs
        )


class RequestsBesidePlugin(PluginWithIOProcessorPlugins):
    """vLLM's, where a request without ``data`` is what it is on an engine without a plugin.

    vLLM takes nothing but ``data`` where a plugin is loaded: raw requests fail on an assertion, and are answered with
    500.
    """

    def get_request_factory_online(self, ctx: PoolingServeContext[Any]) -> Sequence[AnyRenderParam]:
        """As vLLM's with a plugin for ``data``, else as without."""
        if isinstance(ctx.request, IOProcessorRequest):
            return super().get_request_factory_online(ctx)
        return PoolingIOProcessor.get_request_factory_online(self, ctx)

    def post_process_online(self, ctx: PoolingServeContext[Any]) -> None:
        """As vLLM's with a plugin for ``data``, else as without."""
        if isinstance(ctx.request, IOProcessorRequest):
            super().post_process_online(ctx)

    def get_request_factory_offline(self, ctx: AnyOfflineInputsContext) -> tuple[RequestFactory, int]:
        """As vLLM's with a plugin for ``data``, else as without."""
        if isinstance(ctx, OfflinePluginInputsContext):
            return super().get_request_factory_offline(ctx)
        return PoolingIOProcessor.get_request_factory_offline(self, ctx)

    def post_process_offline(self, ctx: OfflineOutputsContext) -> list[PoolingRequestOutput[Any]]:
        """The outputs as they are: those for ``data`` have come from `LLM.encode` of the bound engine."""
        return ctx.outputs
