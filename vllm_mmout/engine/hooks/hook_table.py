"""Every place where vLLM is touched, or relied on: what, why, since when, and when it can go."""

from __future__ import annotations

from functools import cache

from vllm_mmout.engine.hooks import wrappers
from vllm_mmout.engine.hooks.hook import ANYWHERE, CORE, FRONTEND, Hook
from vllm_mmout.engine.hooks.vllm_names import NAMES
from vllm_mmout.errors import HookError, RegistrationError
from vllm_mmout.private_names import Contact
from vllm_mmout.wing import extensions

FULL_STEPS = "vLLM takes several requests in one message"
PLUGIN_FIRST = "vLLM has an output registry of its own"

SEAM = "vllm.v1.engine.output_processor.create_output_processor"
"""What a vLLM has that was patched by ``patches/``: it makes our output processor, and tells it of each start."""

_OBJECT = "overridden on a bound engine's object"


def _used(
    module: str, *rows: tuple[str, tuple[str, ...], str, str], until: str = PLUGIN_FIRST, where: str = FRONTEND
) -> tuple[Hook, ...]:
    """Rows that are only verified: name, parameters, why and since."""
    return tuple(Hook(module, name, used, why, since, until, where=where) for name, used, why, since in rows)


CORE_HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        (),
        "defaults of the engine arguments for our models; wings add to the config",
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
        native=SEAM,
    ),
    Hook(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.__init__",
        ("vllm_config",),
        "check options before a process is started; bind the engine after",
        "0.11",
        PLUGIN_FIRST,
        wrappers.llm_engine_init,
        native=SEAM,
    ),
    Hook(
        "vllm.entrypoints.pooling.offline",
        "PoolingOfflineMixin.__init__",
        (),
        "last step of LLM.__init__: bind that LLM object (the plugin is loaded inside LLM.__init__ itself)",
        "0.30",
        PLUGIN_FIRST,
        wrappers.pooling_offline_init,
        native=SEAM,
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
        "Model Runner V2 has no raw inputs where no processor is bound; reported, vLLM falls back to V1 by itself",
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
        "vllm.v1.engine.core",
        "EngineCoreProc.run_busy_loop",
        (),
        "bind the core's process, which plugins are loaded in too late for its constructor",
        "0.11",
        FULL_STEPS,
        wrappers.run_busy_loop,
        CORE,
    ),
    *_used(
        "vllm.v1.worker.worker_base",
        (
            "WorkerBase.load_model",
            (),
            "overridden on a bound worker: tries the model out and puts the reducing pooler around its own",
            "0.11",
        ),
        (
            "WorkerBase.compile_or_warm_up_model",
            (),
            "overridden on a bound worker: memory is measured before it, requests are served after it",
            "0.11",
        ),
        ("WorkerBase.get_model", (), "called on a bound worker", "0.11"),
        ("WorkerBase.execute_model", (), "timed where the engine is traced", "0.11"),
        ("WorkerBase.sample_tokens", (), "timed where the engine is traced", "0.12"),
        where=ANYWHERE,
    ),
    *_used(
        "vllm.model_executor.models.registry",
        (
            "_ModelInfo.from_model_cls",
            ("model",),
            "called where vLLM asks of a model class of ours what it can do",
            "0.11",
        ),
        until="never",
        where=ANYWHERE,
    ),
    *_used(
        "vllm.model_executor.models.registry",
        (
            "_BaseRegisteredModel.inspect_model_cls",
            (),
            "overridden: a model class of ours is imported when it is needed, and inspected without a further process",
            "0.11",
        ),
        until="vLLM's lazy entries can make an adapter, and are not cached by the hash of one file",
        where=ANYWHERE,
    ),
    *_used(
        "vllm.model_executor.models.registry",
        ("_BaseRegisteredModel.load_model_cls", (), "overridden, as inspect_model_cls", "0.11"),
        until="as inspect_model_cls",
        where=ANYWHERE,
    ),
    *_used(
        "vllm.v1.engine.output_processor",
        ("OutputProcessor.add_request", ("request", "prompt", "parent_req", "request_index", "queue"), _OBJECT, "0.11"),
        ("OutputProcessor.process_outputs", ("engine_core_outputs",), _OBJECT, "0.11"),
        ("OutputProcessor.abort_requests", ("request_ids", "internal"), _OBJECT, "0.13"),
        ("OutputProcessor.get_num_unfinished_requests", (), _OBJECT, "0.11"),
        ("OutputProcessor.has_unfinished_requests", (), _OBJECT, "0.11"),
        ("OutputProcessor.do_tracing", ("engine_core_output", "req_state", "iteration_stats"), _OBJECT, "0.11"),
        (
            "RequestState.make_request_output",
            ("new_token_ids", "pooling_output", "finish_reason"),
            "overridden on a bound engine's requests",
            "0.11",
        ),
    ),
    *_used(
        "vllm.v1.engine.async_llm",
        (
            "AsyncLLM.add_request",
            ("request_id", "prompt", "params", "lora_request", "trace_headers", "priority", "data_parallel_rank"),
            "called by generate",
            "0.11",
        ),
        (
            "AsyncLLM.abort",
            ("request_id", "internal"),
            "overridden: a scene ends with its tiles; called by generate",
            "0.13",
        ),
    ),
    *_used(
        "vllm.v1.engine.llm_engine",
        (
            "LLMEngine.add_request",
            ("request_id", "prompt", "params", "lora_request", "priority"),
            "called by generate",
            "0.11",
        ),
        ("LLMEngine.step", (), "overridden on a bound engine", "0.11"),
        ("LLMEngine.abort_request", ("request_ids", "internal"), "called by generate", "0.13"),
    ),
    *_used(
        "vllm.v1.engine.core_client",
        (
            "SyncMPClient.get_output",
            (),
            (
                "overridden on a bound engine's client: where it waits, for its outputs_queue, a Ctrl-C comes at once;"
                " scenes put an empty answer there to be heard"
            ),
            "0.11",
        ),
        until="vLLM's synchronous engine takes a Ctrl-C at any moment",
    ),
    *_used(
        "vllm.v1.engine.core",
        (
            "EngineCoreProc._process_input_queue",
            (),
            "overridden on a bound core: waits for all tiles of a batch; EngineCore.add_request, so too, counts them",
            "0.11",
        ),
        ("EngineCore.add_request", ("request", "request_wave"), "as _process_input_queue", "0.11"),
        ("EngineCoreProc._handle_client_request", (), "as _process_input_queue", "0.11"),
        ("EngineCoreProc.is_running", (), "as _process_input_queue", "0.13"),
        (
            "EngineCoreProc._process_engine_step",
            (),
            "replaced on a bound core: a step that hangs ends it; timed where the engine is traced",
            "0.11",
        ),
        until=FULL_STEPS,
        where=CORE,
    ),
    *_used(
        "vllm.distributed.device_communicators.shm_broadcast",
        (
            "SpinCondition.__init__",
            ("busy_loop_s",),
            "its time is shortened on a bound core, which waits for steps of a second with a processor at full load",
            "0.30",
        ),
        until="vLLM's core waits asleep for steps that take long",
        where=CORE,
    ),
)


def hooks() -> tuple[Hook, ...]:
    """The callables that are wrapped or relied on, of the core and of all wings."""
    return (*CORE_HOOKS, *(row for row in _of_wings() if isinstance(row, Hook)))


def names() -> tuple[Contact, ...]:
    """Further names that are relied on, of the core and of all wings."""
    return (*NAMES, *(row for row in _of_wings() if isinstance(row, Contact)))


@cache
def _of_wings() -> tuple[Hook | Contact, ...]:
    try:
        return tuple(row for rows in extensions("hooks") for row in rows)
    except RegistrationError as error:
        raise HookError(str(error)) from error
