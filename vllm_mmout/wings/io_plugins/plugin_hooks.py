"""Hooks into vLLM for IO Processor plugins: ``mmout``, and plugins of other packages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_mmout.engine.hooks.hook import Hook
from vllm_mmout.private_names import Contact

_REQUESTS = "run requests of IO Processor plugins, ours and others"
NAMED = "vLLM's IO Processor plugins may yield prompts one by one, off the event loop"


def io_plugin_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the constructor of vLLM's pooling processor. The processor then also accepts requests without ``data``."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.wings.io_plugins.own.plugin_binding import bind_requests

        original(self, *args, **kwargs)
        bind_requests(self)

    return wrapper


PLUGIN_HOOKS: tuple[Hook | Contact, ...] = (
    Hook(
        "vllm.entrypoints.pooling.pooling.io_processor",
        "PluginWithIOProcessorPlugins.__init__",
        (),
        "last step of a plugin's start: bind the processor of pooling requests if the plugin is ours, as it would fail"
        " requests without data",
        "0.30",
        "vLLM takes raw requests beside those of a plugin",
        io_plugin_init,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.encode",
        ("prompt", "pooling_params", "request_id", "lora_request", "trace_headers", "priority"),
        "overridden on a bound engine: generate runs the requests that the IO Processor plugin mmout names",
        "0.11",
        NAMED,
    ),
    Hook(
        "vllm.entrypoints.pooling.offline",
        "PoolingOfflineMixin.encode",
        ("prompts", "pooling_params", "use_tqdm", "lora_request", "pooling_task"),
        "overridden on a bound LLM for the same reason as AsyncLLM.encode",
        "0.30",
        NAMED,
    ),
    *(
        Hook(
            "vllm.entrypoints.pooling.pooling.io_processor",
            f"PluginWithIOProcessorPlugins.{step}_{way}",
            ("ctx",),
            "overridden on a bound engine; online it calls pre_process and merge_pooling_params of the plugin one after"
            " the other, and passes these params to encode",
            "0.30",
            NAMED,
        )
        for way in ("online", "offline")
        for step in ("get_request_factory", "post_process")
    ),
    *(
        Hook(
            "vllm.entrypoints.pooling.base.io_processor",
            f"PoolingIOProcessor.{name}",
            ("ctx",),
            "called on a bound engine for requests without data",
            "0.30",
            NAMED,
        )
        for name in ("get_request_factory_online", "get_request_factory_offline")
    ),
    Hook(
        "vllm.plugins.io_processors.interface",
        "IOProcessor.merge_pooling_params",
        ("params",),
        "overridden by the IO Processor plugin mmout: the params name the request, which the renderer would drop",
        "0.30",
        NAMED,
    ),
    Hook(
        "vllm.renderers.base",
        "BaseRenderer.render_cmpl",
        ("prompts", "skip_mm_cache"),
        "called for prompts of installed IO Processor plugins, in the renderer's _executor, as vLLM does",
        "0.30",
        "never",
    ),
    Contact("vllm.entrypoints.pooling.base.io_processor", ("PoolingIOProcessor",), _REQUESTS),
    Contact("vllm.entrypoints.pooling.base.protocol", ("reject_removed_pooling_parameters",), _REQUESTS),
    Contact("vllm.entrypoints.pooling.pooling.io_processor", ("PluginWithIOProcessorPlugins.io_processor",), _REQUESTS),
    Contact("vllm.entrypoints.pooling.pooling.protocol", ("IOProcessorRequest",), _REQUESTS),
    Contact("vllm.entrypoints.pooling.typing", ("OfflinePluginInputsContext",), _REQUESTS),
    Contact("vllm.exceptions", ("VLLMValidationError",), _REQUESTS),
    Contact("vllm.outputs", ("PoolingOutput", "PoolingRequestOutput"), _REQUESTS),
    Contact("vllm.plugins.io_processors.interface", ("IOProcessor",), _REQUESTS),
    Contact("vllm.pooling_params", ("PoolingParams",), _REQUESTS),
    Contact("vllm.renderers.base", ("BaseRenderer._executor",), _REQUESTS),
    Contact("vllm.renderers.inputs.preprocess", ("parse_model_prompt", "prompt_to_seq"), _REQUESTS),
    Contact("vllm.utils.import_utils", ("resolve_obj_by_qualname",), _REQUESTS),
)
