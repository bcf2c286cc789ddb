"""Table of every vLLM callable that this package wraps or uses. Each row has a purpose and the first vLLM version."""

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
"""Full name of the function that creates an engine's output processor. Only a patched vLLM has the function.

In a patched vLLM, the constructors of ``LLM`` and of the engines are not hooked.
"""

_OBJECT = "override it on the output processor of a bound engine"


def _unchanged_hooks(
    module: str, *rows: tuple[str, tuple[str, ...], str, str], until: str = PLUGIN_FIRST, where: str = FRONTEND
) -> tuple[Hook, ...]:
    """Return a `Hook` for each callable of a vLLM module that this package uses without wrapping it.

    Each of ``rows`` is (name of the callable, its parameters, purpose, first vLLM version).
    """
    return tuple(Hook(module, name, used, why, since, until, where=where) for name, used, why, since in rows)


CORE_HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        (),
        "set defaults of the engine arguments for our models, and let wings add to the config",
        "0.11",
        "vLLM takes such defaults from a model class",
        wrappers.create_engine_config,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.__init__",
        ("vllm_config",),
        "check options before a process is started, and bind the engine afterwards",
        "0.11",
        PLUGIN_FIRST,
        wrappers.async_llm_init,
        native=SEAM,
    ),
    Hook(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.__init__",
        ("vllm_config",),
        "check options before a process is started, and bind the engine afterwards",
        "0.11",
        PLUGIN_FIRST,
        wrappers.llm_engine_init,
        native=SEAM,
    ),
    Hook(
        "vllm.entrypoints.pooling.offline",
        "PoolingOfflineMixin.__init__",
        (),
        "bind the LLM object in the last step of LLM.__init__, which itself loads the plugin",
        "0.30",
        PLUGIN_FIRST,
        wrappers.pooling_offline_init,
        native=SEAM,
    ),
    Hook(
        "vllm.plugins",
        "load_endpoint_plugins",
        (),
        "add our routes to a server of `vllm-mmout serve`, since VLLM_PLUGINS would filter all other plugins too",
        "0.30",
        "vLLM can be told to load an endpoint plugin without filtering plugins of other kinds",
        wrappers.load_endpoint_plugins,
    ),
    Hook(
        "vllm.config.vllm",
        "VllmConfig._get_v2_model_runner_unsupported_features",
        (),
        "have vLLM fall back to V1 for raw inputs without a bound processor, which Model Runner V2 cannot run",
        "0.29",
        "Model Runner V2 runs such models",
        wrappers.v2_unsupported,
        ANYWHERE,
    ),
    Hook(
        "vllm.v1.worker.worker_base",
        "WorkerWrapperBase.init_device",
        (),
        "bind the worker before it loads the model, and after plugins are loaded",
        "0.11",
        PLUGIN_FIRST,
        wrappers.worker_init_device,
        ANYWHERE,
    ),
    Hook(
        "vllm.v1.engine.core",
        "EngineCoreProc.run_busy_loop",
        (),
        "bind the engine core after its constructor, which runs before plugins are loaded",
        "0.11",
        FULL_STEPS,
        wrappers.run_busy_loop,
        CORE,
    ),
    *_unchanged_hooks(
        "vllm.v1.worker.worker_base",
        (
            "WorkerBase.load_model",
            (),
            "override it on a bound worker, which tries the model out and wraps the model's pooler",
            "0.11",
        ),
        (
            "WorkerBase.compile_or_warm_up_model",
            (),
            "override it on a bound worker: vLLM measures memory before it, and serves requests after it",
            "0.11",
        ),
        ("WorkerBase.get_model", (), "get the model of a bound worker", "0.11"),
        ("WorkerBase.execute_model", (), "time the steps of a traced engine", "0.11"),
        ("WorkerBase.sample_tokens", (), "time the steps of a traced engine", "0.12"),
        where=ANYWHERE,
    ),
    *_unchanged_hooks(
        "vllm.model_executor.models.registry",
        (
            "_ModelInfo.from_model_cls",
            ("model",),
            "tell vLLM what a model class of ours supports",
            "0.11",
        ),
        until="never",
        where=ANYWHERE,
    ),
    *_unchanged_hooks(
        "vllm.model_executor.models.registry",
        (
            "_BaseRegisteredModel.inspect_model_cls",
            (),
            "override it, so that a model class of ours is imported when needed, and inspected in this process",
            "0.11",
        ),
        until="vLLM's lazy entries can create an adapter, and are not cached by the hash of one file",
        where=ANYWHERE,
    ),
    *_unchanged_hooks(
        "vllm.model_executor.models.registry",
        (
            "_BaseRegisteredModel.load_model_cls",
            (),
            "override it, so that a model class of ours is imported here",
            "0.11",
        ),
        until="vLLM's lazy entries can create an adapter",
        where=ANYWHERE,
    ),
    *_unchanged_hooks(
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
            "override it on the requests of a bound engine",
            "0.11",
        ),
    ),
    *_unchanged_hooks(
        "vllm.v1.engine.async_llm",
        (
            "AsyncLLM.add_request",
            ("request_id", "prompt", "params", "lora_request", "trace_headers", "priority", "data_parallel_rank"),
            "add the requests of generate",
            "0.11",
        ),
        (
            "AsyncLLM.abort",
            ("request_id", "internal"),
            "override it, so that a scene is aborted with its tiles, and call it in generate",
            "0.13",
        ),
    ),
    *_unchanged_hooks(
        "vllm.v1.engine.llm_engine",
        (
            "LLMEngine.add_request",
            ("request_id", "prompt", "params", "lora_request", "priority"),
            "add the requests of generate",
            "0.11",
        ),
        ("LLMEngine.step", (), "override it on a bound engine", "0.11"),
        ("LLMEngine.abort_request", ("request_ids", "internal"), "abort the requests of generate", "0.13"),
    ),
    *_unchanged_hooks(
        "vllm.v1.engine.core_client",
        (
            "SyncMPClient.get_output",
            (),
            "waits for its outputs_queue, where scenes and a Ctrl-C put an empty answer to end the wait",
            "0.11",
        ),
        until="vLLM's synchronous engine survives a Ctrl-C at any moment",
    ),
    *_unchanged_hooks(
        "vllm.v1.engine.core",
        (
            "EngineCore.preprocess_add_request",
            ("request",),
            "replace it on a bound core, to pin the tensors of a request in the thread that receives it",
            "0.11",
        ),
        (
            "EngineCoreProc._process_engine_step",
            (),
            "replace it on a bound core, to limit the time of a step, and to time the steps of a traced engine",
            "0.11",
        ),
        until=FULL_STEPS,
        where=CORE,
    ),
    *_unchanged_hooks(
        "vllm.distributed.device_communicators.shm_broadcast",
        (
            "SpinCondition.__init__",
            ("busy_loop_s",),
            "shorten the polling of a bound core, which otherwise keeps a CPU core busy during long steps",
            "0.30",
        ),
        until="vLLM's core sleeps during long steps",
        where=CORE,
    ),
)


def hooks() -> tuple[Hook, ...]:
    """Return all hooks of this package and of its extension packages. Each hook is for a vLLM callable."""
    return (*CORE_HOOKS, *(row for row in _of_wings() if isinstance(row, Hook)))


def names() -> tuple[Contact, ...]:
    """Return the names of vLLM's API that this package and its extension packages use, except hooked callables."""
    return (*NAMES, *(row for row in _of_wings() if isinstance(row, Contact)))


@cache
def _of_wings() -> tuple[Hook | Contact, ...]:
    try:
        return tuple(row for rows in extensions("hooks") for row in rows)
    except RegistrationError as error:
        raise HookError(str(error)) from error
