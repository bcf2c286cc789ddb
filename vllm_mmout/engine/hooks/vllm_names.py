"""List of the names of vLLM that this package imports, and of the attributes of vLLM's objects that it reads.

``vllm-mmout doctor`` and tests check that they exist. Checking them at the start of an engine would import them all.
"""

from __future__ import annotations

from vllm_mmout.private_names import Contact

_PUBLIC = "use vLLM's documented interface"
_PRIVATE = "bind an engine"
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
    _names("vllm.plugins", "load_general_plugins", _PUBLIC),
    _names("vllm.pooling_params", "PoolingParams.extra_kwargs PoolingParams.clone", _PUBLIC),
    _names("vllm.config.parallel", "ParallelConfig._api_process_count", "create the trace file only once"),
    _names("vllm.exceptions", "VLLMClientError VLLMValidationError", "refuse a request as vLLM does"),
    _names("vllm.model_executor.model_loader", "get_model_architecture", "find the class that serves a model"),
    _names("vllm.model_executor.models.interfaces", "IsAttentionFree SupportsMultiModal", "adapt a model"),
    _names("vllm.model_executor.models.interfaces_base", "is_vllm_model", "tell vLLM's own model classes from others"),
    _names(
        "vllm.model_executor.models.registry",
        "ModelRegistry.models ModelRegistry._normalize_arch _BaseRegisteredModel _ModelInfo",
        "register the model classes of authors with vLLM",
    ),
    _names("vllm.transformers_utils.config", "get_config_parser register_config_parser", "read folders of wings"),
    _names("vllm.transformers_utils.config_parser_base", "ConfigParserBase", "read folders of wings"),
    _names("vllm.model_executor.layers.pooler", "IdentityPooler Pooler", "run reduce in the worker"),
    _names("vllm.multimodal", "MULTIMODAL_REGISTRY", "register the inputs of a model"),
    _names(
        "vllm.multimodal.inputs",
        "MultiModalFieldConfig MultiModalKwargsItems PlaceholderRange",
        "pass a request's tensors as a rendered prompt",
    ),
    _names(
        "vllm.multimodal.image",
        "convert_image_mode normalize_image",
        "convert pictures as vLLM does for its processors",
    ),
    _names(
        "vllm.multimodal.parse",
        "ModalityDataItems MultiModalDataItems MultiModalDataParser ProcessorBatchItems",
        "parse tensors and pictures",
    ),
    _names(
        "vllm.multimodal.processing",
        "BaseDummyInputsBuilder BaseMultiModalProcessor BaseProcessingInfo ProcessorInputs PromptUpdate TimingContext",
        "have vLLM accept a model's tensors without a Hugging Face processor",
    ),
    _names(
        "vllm.multimodal.processing",
        "BaseMultiModalProcessor._cached_apply_hf_processor BaseMultiModalProcessor._apply_hf_processor_main"
        " InputProcessingContext.get_merged_mm_kwargs PromptReplacement",
        "process the pictures of a generating model with its author's functions",
    ),
    _names("vllm.renderers.base", "BaseRenderer.render_messages BaseRenderer.tokenizer", "refuse chats"),
    _names("vllm.tracing", "SpanKind extract_trace_context extract_trace_headers", "join the traces that vLLM makes"),
    _names("vllm.utils.argparse_utils", "FlexibleArgumentParser", "read flags as vLLM's command line does"),
    _names("vllm.utils.system_utils", "get_mp_context", "check how vLLM starts the engine's processes"),
    _names("vllm.v1.engine", "EngineCoreOutput EngineCoreOutputs FinishReason", _PRIVATE),
    _names(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.model_config AsyncLLM.renderer AsyncLLM.vllm_config AsyncLLM.shutdown",
        _PRIVATE,
    ),
    _names("vllm.v1.engine.core", "EngineCoreProc.model_executor", _PRIVATE),
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
        "let the core sleep during a step, and wake sleeping workers",
    ),
    _names(
        "vllm.distributed.device_communicators.shm_broadcast",
        "MessageQueue._spin_condition SpinCondition.busy_loop_s SpinCondition.is_reader"
        " SpinCondition.local_notify_socket SpinCondition.wait",
        "let the core sleep during a step, and wake sleeping workers",
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
        "pass a request's tensors to forward on Model Runner V2",
    ),
    _names(
        "vllm.v1.worker.gpu.pool",
        "pooling_runner pooling_runner._SUPPORTED_TASKS",
        "run our pooling task on Model Runner V2",
    ),
    _names(
        "vllm.config.model_arch",
        "ModelArchitectureConfig.vocab_size",
        "set a vocabulary, by which Model Runner V2 divides",
    ),
    _names("vllm.triton_utils", "HAS_TRITON", "report which model runner vLLM uses"),
    _names("vllm.multimodal.encoder_budget", "MultiModalBudget.get_modality_with_max_tokens", _DUMMIES),
    _names("vllm.multimodal.utils", "group_and_batch_mm_kwargs", "batch a step's tensors as Model Runner V1 does"),
    _names("vllm.model_executor.model_loader.utils", "get_model_cls", "set a model's state class for Model Runner V2"),
    _names("vllm.utils.torch_utils", "PIN_MEMORY", "batch a step's tensors as Model Runner V1 does"),
    _names("vllm.v1.executor.uniproc_executor", "UniProcExecutor", "pin tensors of requests that arrive"),
    _names("vllm.v1.outputs", "AsyncModelRunnerOutput", "send early outputs of a request before its result"),
    _names("vllm.v1.worker.worker_base", "WorkerBase.vllm_config WorkerWrapperBase.worker", _PRIVATE),
    _names("vllm.entrypoints.llm", "LLM.request_counter LLM.pooling_task", _PRIVATE),
    _names(
        "vllm.entrypoints.cli.serve",
        "ServeSubcommand.subparser_init ServeSubcommand.validate ServeSubcommand.cmd",
        "start vLLM's own server",
    ),
    _names(
        "vllm.entrypoints.openai.models.serving",
        "OpenAIServingModels.show_available_models OpenAIServingModels.is_base_model",
        "describe the model in /v1/models",
    ),
    _names(
        "vllm.entrypoints.serve.middleware.authenticate",
        "AuthenticationMiddleware",
        "verify the API key of a request",
    ),
)
