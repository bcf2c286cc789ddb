"""What vLLM makes of pooling requests on an engine with the IO Processor plugin ``mmout``: others than its own, too.

vLLM takes nothing but ``data`` where a plugin is loaded: raw requests fail on an assertion, and are answered with 500.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.entrypoints.pooling.pooling.io_processor import PluginWithIOProcessorPlugins
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorRequest
from vllm.entrypoints.pooling.typing import OfflinePluginInputsContext

if TYPE_CHECKING:
    from vllm.entrypoints.pooling.typing import (
        AnyOfflineInputsContext,
        AnyRenderParam,
        OfflineOutputsContext,
        PoolingServeContext,
        RequestFactory,
    )
    from vllm.outputs import PoolingRequestOutput


class RequestsBesidePlugin(PluginWithIOProcessorPlugins):
    """vLLM's, where a request without ``data`` is what it is on an engine without a plugin."""

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
