"""Names of vLLM that the core imports, or uses of objects that vLLM made: rows of the hook table that change nothing.

They are looked at by ``vllm-mmout doctor`` and by tests, not at the start of an engine, which would import them all.
"""

from __future__ import annotations

from vllm_mmout.private_names import Contact

_PUBLIC = "use vLLM as its documentation says"
_PRIVATE = "bind an engine that is there"
_DUMMIES = "measure the memory of a forward on Model Runner V2"


def _names(module: str, names: str, why: str) -> Contact:
    return Contact(module, tuple(names.split()), why)


NAMES: tuple[Contact, ...] = (
    _names("vllm", "LLM envs logger", _PUBLIC),
    _names("vllm.engine.arg_utils", "EngineArgs.add_cli_args EngineArgs.from_cli_args", _PUBLIC),
    _names("vllm.inputs", "MultiModalDataDict MultiModalInput mm_input", _PUBLIC),
    _names("vllm.logger", "init_logger", _PUBLIC),
    _names("vllm.outputs", "PoolingRequestOutput", _PUBLIC),
    _names("vllm.platforms", "current_platform", _PUBLIC),
    _names("vllm.pooling_params", "PoolingParams.extra_kwargs PoolingParams.clone", _PUBLIC),
    _names("vllm.config.parallel", "ParallelConfig._api_process_count", "begin the file of a trace once"),
    _names("vllm.exceptions", "VLLMClientError VLLMValidationError", "refuse a request as vLLM does"),
    _names("vllm.model_executor.model_loader", "get_model_architecture", "find the class that serves a model"),
    _names("vllm.model_executor.models.interfaces", "IsAttentionFree SupportsMultiModal", "adapt a model"),
    _names("vllm.model_executor.models.interfaces_base", "is_vllm_model", "see whether a class is vLLM's"),
    _names(
        "vllm.model_executor.models.registry",
        "ModelRegistry.models ModelRegistry._normalize_arch _BaseRegisteredModel _ModelInfo",
        "put classes of authors into vLLM's registry of models",
    ),
    _names("vllm.transformers_utils.config", "get_config_parser register_config_parser", "read folders of wings"),
    _names("vllm.transformers_utils.config_parser_base", "ConfigParserBase", "read folders of wings"),
    _names("vllm.model_executor.layers.pooler", "IdentityPooler Pooler", "run reduce in the worker"),
    _names("vllm.multimodal", "MULTIMODAL_REGISTRY", "register the inputs of a model"),
    _names(
        "vllm.multimodal.inputs",
        "MultiModalFieldConfig MultiModalKwargsItems PlaceholderRange",
        "hand tensors over rendered",
    ),
    _names(
        "vllm.multimodal.image", "convert_image_mode normalize_image", "give pictures as vLLM's processors get them"
    ),
    _names(
        "vllm.multimodal.parse",
        "ModalityDataItems MultiModalDataItems MultiModalDataParser ProcessorBatchItems",
        "take tensors and pictures",
    ),
    _names(
        "vllm.multimodal.processing",
        "BaseDummyInputsBuilder BaseMultiModalProcessor BaseProcessingInfo ProcessorInputs PromptUpdate TimingContext",
        "have vLLM take a model's tensors without a processor",
    ),
    _names(
        "vllm.multimodal.processing",
        "BaseMultiModalProcessor._cached_apply_hf_processor BaseMultiModalProcessor._apply_hf_processor_main"
        " InputProcessingContext.get_merged_mm_kwargs PromptReplacement",
        "process the pictures of a model that generates by functions of its author",
    ),
    _names("vllm.renderers.base", "BaseRenderer.render_messages BaseRenderer.tokenizer", "refuse chats"),
    _names("vllm.tracing", "SpanKind extract_trace_context extract_trace_headers", "join the traces that vLLM makes"),
    _names("vllm.utils.argparse_utils", "FlexibleArgumentParser", "read flags as vLLM's command line does"),
    _names("vllm.utils.system_utils", "get_mp_context", "know how processes of the engine are started"),
    _names("vllm.v1.engine", "EngineCoreOutput EngineCoreOutputs FinishReason", _PRIVATE),
    _names(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.model_config AsyncLLM.renderer AsyncLLM.vllm_config AsyncLLM.shutdown",
        _PRIVATE,
    ),
    _names("vllm.v1.engine.core", "EngineCoreProc.input_queue EngineCoreProc.model_executor", _PRIVATE),
    _names(
        "vllm.v1.engine.core_client",
        "SyncMPClient.outputs_queue SyncMPClient.shutdown MPClient.core_engines AsyncMPClient.client_index",
        _PRIVATE,
    ),
    _names("vllm.v1.engine.exceptions", "EngineDeadError EngineGenerateError", _PRIVATE),
    _names("vllm.v1.engine.llm_engine", "LLMEngine.engine_core LLMEngine.renderer", _PRIVATE),
    _names(
        "vllm.v1.executor.multiproc_executor",
        "MultiprocExecutor.response_mqs MultiprocExecutor.rpc_broadcast_mq",
        "let the core sleep, and be heard by workers that do",
    ),
    _names(
        "vllm.distributed.device_communicators.shm_broadcast",
        "MessageQueue._spin_condition SpinCondition.busy_loop_s SpinCondition.is_reader"
        " SpinCondition.local_notify_socket SpinCondition.wait",
        "as above",
    ),
    _names(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.request_states OutputProcessor.tracing_enabled OutputProcessorOutput "
        "RequestState.external_req_id RequestState.queue RequestState.stats RequestState.stream_interval",
        _PRIVATE,
    ),
    _names(
        "vllm.v1.worker.gpu.model_states.interface",
        "ModelState.add_request ModelState.remove_request ModelState.prepare_inputs_embeds ModelState.prepare_inputs "
        "ModelState.prepare_dummy_inputs ModelState.prepare_attn",
        "hand a request's tensors to forward on Model Runner V2",
    ),
    _names("vllm.v1.worker.gpu.pool", "pooling_runner pooling_runner._SUPPORTED_TASKS", "run our task on V2"),
    _names("vllm.config.model_arch", "ModelArchitectureConfig.vocab_size", "V2 divides by it"),
    _names("vllm.triton_utils", "HAS_TRITON", "say which model runner vLLM takes"),
    _names("vllm.multimodal.encoder_budget", "MultiModalBudget.get_modality_with_max_tokens", _DUMMIES),
    _names("vllm.multimodal.utils", "group_and_batch_mm_kwargs", "batch a step's tensors as Model Runner V1 does"),
    _names("vllm.model_executor.model_loader.utils", "get_model_cls", "name a model's state to Model Runner V2"),
    _names("vllm.utils.torch_utils", "PIN_MEMORY", "batch a step's tensors as Model Runner V1 does"),
    _names("vllm.v1.outputs", "AsyncModelRunnerOutput", "send what a request gives before its result"),
    _names("vllm.v1.worker.worker_base", "WorkerBase.vllm_config WorkerWrapperBase.worker", _PRIVATE),
    _names("vllm.entrypoints.llm", "LLM.request_counter LLM.pooling_task", _PRIVATE),
    _names(
        "vllm.entrypoints.cli.serve",
        "ServeSubcommand.subparser_init ServeSubcommand.validate ServeSubcommand.cmd",
        "start vLLM's own server",
    ),
    _names("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware", "keep a key's protection"),
)
