"""Every place where vLLM is touched, or relied on: what, why, since when, and when it can go."""

from __future__ import annotations

from vllm_mmout.engine import wrappers
from vllm_mmout.engine.hook import ANYWHERE, CORE, Attribute, Hook

FIRST_NAMES = "names of vLLM's first input registries, which it removed, for code that was written for them"
NAMED = "vLLM's IO Processor plugins may give prompts as they are made, off the event loop"
FULL_STEPS = "vLLM takes several requests in one message"
PLUGIN_FIRST = "vLLM has an output registry of its own"

HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        (),
        "defaults of the engine arguments for our models",
        "0.11",
        "vLLM takes such defaults from a model class",
        wrappers.create_engine_config,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.__init__",
        ("vllm_config",),
        "check options before a process is started; bind the engine after",
        "0.11",
        PLUGIN_FIRST,
        wrappers.async_llm_init,
    ),
    Hook(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.__init__",
        ("vllm_config",),
        "check options before a process is started; bind the engine after",
        "0.11",
        PLUGIN_FIRST,
        wrappers.llm_engine_init,
    ),
    Hook(
        "vllm.entrypoints.pooling.offline",
        "PoolingOfflineMixin.__init__",
        (),
        "last step of LLM.__init__: bind that LLM object (the plugin is loaded inside LLM.__init__ itself)",
        "0.30",
        PLUGIN_FIRST,
        wrappers.pooling_offline_init,
    ),
    Hook(
        "vllm.entrypoints.pooling.pooling.io_processor",
        "PluginWithIOProcessorPlugins.__init__",
        (),
        "last step of a plugin's start: bind that object where the plugin is ours; others than its requests fail there",
        "0.30",
        "vLLM takes raw requests beside those of a plugin",
        wrappers.io_plugin_init,
    ),
    Hook(
        "vllm.plugins",
        "load_endpoint_plugins",
        (),
        "add our routes to a server of `vllm-mmout serve`; VLLM_PLUGINS, which could, filters all other plugins too",
        "0.30",
        "vLLM can be told to load one endpoint plugin without a word about plugins of other kinds",
        wrappers.load_endpoint_plugins,
    ),
    Hook(
        "vllm.config.vllm",
        "VllmConfig._get_v2_model_runner_unsupported_features",
        (),
        "Model Runner V2 has neither raw inputs nor plugin poolers; reported, vLLM falls back to V1 by itself",
        "0.29",
        "Model Runner V2 runs such models",
        wrappers.v2_unsupported,
        ANYWHERE,
    ),
    Hook(
        "vllm.v1.worker.worker_base",
        "WorkerWrapperBase.init_device",
        (),
        "bind the worker, whose model load puts the reducing pooler in place; plugins are loaded before it",
        "0.11",
        PLUGIN_FIRST,
        wrappers.worker_init_device,
        ANYWHERE,
    ),
    Hook(
        "vllm.v1.worker.worker_base",
        "WorkerBase.load_model",
        (),
        "overridden on a bound worker: tries the model out and puts the reducing pooler around its own",
        "0.11",
        PLUGIN_FIRST,
        where=ANYWHERE,
    ),
    Hook(
        "vllm.v1.worker.worker_base",
        "WorkerBase.compile_or_warm_up_model",
        (),
        "overridden on a bound worker: memory is measured before it, requests are served after it",
        "0.11",
        PLUGIN_FIRST,
        where=ANYWHERE,
    ),
    Hook(
        "vllm.v1.worker.worker_base",
        "WorkerBase.get_model",
        (),
        "called on a bound worker",
        "0.11",
        PLUGIN_FIRST,
        where=ANYWHERE,
    ),
    Hook(
        "vllm.model_executor.models.registry",
        "_ModelInfo.from_model_cls",
        ("model",),
        "called where vLLM asks of a model class of ours what it can do",
        "0.11",
        "never",
        where=ANYWHERE,
    ),
    Hook(
        "vllm.model_executor.models.registry",
        "_BaseRegisteredModel.inspect_model_cls",
        (),
        "overridden: a model class of ours is imported when it is needed, and inspected without a further process",
        "0.11",
        "vLLM's lazy entries can make an adapter, and are not cached by the hash of one file",
        where=ANYWHERE,
    ),
    Hook(
        "vllm.model_executor.models.registry",
        "_BaseRegisteredModel.load_model_cls",
        (),
        "overridden, as inspect_model_cls",
        "0.11",
        "as inspect_model_cls",
        where=ANYWHERE,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.add_request",
        ("request", "prompt", "parent_req", "request_index", "queue"),
        "overridden on a bound engine's object",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.process_outputs",
        ("engine_core_outputs",),
        "overridden on a bound engine's object",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.abort_requests",
        ("request_ids", "internal"),
        "overridden on a bound engine's object",
        "0.13",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.get_num_unfinished_requests",
        (),
        "overridden on a bound engine's object",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.has_unfinished_requests",
        (),
        "overridden on a bound engine's object",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "RequestState.make_request_output",
        ("new_token_ids", "pooling_output", "finish_reason"),
        "overridden on a bound engine's requests",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.add_request",
        ("request_id", "prompt", "params", "lora_request", "trace_headers", "priority"),
        "called by generate",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.abort",
        ("request_id", "internal"),
        "overridden: a scene ends with its tiles; called by generate",
        "0.13",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.encode",
        ("prompt", "pooling_params", "request_id", "lora_request", "trace_headers", "priority"),
        "overridden on a bound engine: what the IO Processor plugin mmout names is run by generate",
        "0.11",
        NAMED,
    ),
    Hook(
        "vllm.entrypoints.pooling.offline",
        "PoolingOfflineMixin.encode",
        ("prompts", "pooling_params", "use_tqdm", "lora_request", "pooling_task"),
        "overridden on a bound LLM, as AsyncLLM.encode",
        "0.30",
        NAMED,
    ),
    *(
        Hook(
            "vllm.entrypoints.pooling.pooling.io_processor",
            f"PluginWithIOProcessorPlugins.{name}",
            ("ctx",),
            "overridden on a bound engine; online it calls pre_process and merge_pooling_params of the plugin one after"
            " the other, and gives encode these params",
            "0.30",
            NAMED,
        )
        for name in (
            "get_request_factory_online",
            "post_process_online",
            "get_request_factory_offline",
            "post_process_offline",
        )
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
        "called for prompts of installed IO Processor plugins, in the renderer's _executor, as vLLM does it",
        "0.30",
        "never",
    ),
    Hook(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.add_request",
        ("request_id", "prompt", "params", "lora_request", "priority"),
        "called by generate",
        "0.11",
        PLUGIN_FIRST,
    ),
    Hook(
        "vllm.v1.engine.core_client",
        "SyncMPClient.get_output",
        (),
        "overridden on a bound engine's client: where it waits, a Ctrl-C comes at once; it waits for its outputs_queue,"
        " into which scenes put an empty answer to be heard",
        "0.11",
        "vLLM's synchronous engine takes a Ctrl-C at any moment",
    ),
    Hook(
        "vllm.v1.engine.core",
        "EngineCoreProc.run_busy_loop",
        (),
        "bind the core's process, which plugins are loaded in too late for its constructor",
        "0.11",
        FULL_STEPS,
        wrappers.run_busy_loop,
        CORE,
    ),
    Hook(
        "vllm.v1.engine.core",
        "EngineCoreProc._process_input_queue",
        (),
        "overridden on a bound core: waits for all tiles of a batch; so is EngineCore.add_request, which counts them",
        "0.11",
        FULL_STEPS,
        where=CORE,
    ),
    Hook(
        "vllm.v1.engine.core",
        "EngineCore.add_request",
        ("request", "request_wave"),
        "as above",
        "0.11",
        FULL_STEPS,
        where=CORE,
    ),
    Hook(
        "vllm.v1.engine.core", "EngineCoreProc._handle_client_request", (), "as above", "0.11", FULL_STEPS, where=CORE
    ),
    Hook("vllm.v1.engine.core", "EngineCoreProc.is_running", (), "as above", "0.13", FULL_STEPS, where=CORE),
    Hook("vllm.v1.engine.llm_engine", "LLMEngine.step", (), "overridden on a bound engine", "0.11", PLUGIN_FIRST),
    Hook(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.abort_request",
        ("request_ids", "internal"),
        "called by generate",
        "0.13",
        PLUGIN_FIRST,
    ),
)

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "vllm.multimodal", "MULTIMODAL_INPUT_REGISTRY", wrappers.input_registry, "the input half of the split registry"
    ),
    Attribute(
        "vllm.multimodal",
        "MULTIMODAL_OUTPUT_REGISTRY",
        wrappers.output_registry,
        "the output half of the split registry",
    ),
    Attribute("vllm.inputs", "INPUT_REGISTRY", wrappers.input_registry, FIRST_NAMES),
    Attribute("vllm.inputs", "InputContext", wrappers.input_context, FIRST_NAMES),
    Attribute("vllm.inputs", "DummyData", wrappers.dummy_data, FIRST_NAMES),
    *(
        Attribute("vllm.multimodal", f"MULTIMODAL_REGISTRY.{name}", wrappers.first_input_registry(name), FIRST_NAMES)
        for name in (
            "register_input_mapper",
            "register_image_input_mapper",
            "register_max_tokens",
            "register_max_image_tokens",
            "register_max_multimodal_tokens",
        )
    ),
)
