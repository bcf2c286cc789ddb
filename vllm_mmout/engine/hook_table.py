"""Every place where vLLM is touched, or relied on: what, why, since when, and when it can go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_mmout.engine import wrappers

FRONTEND = "frontend"
"""Rows for processes with an ``EngineArgs``: those that make engines."""
ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Hook:
    """One row: a callable of vLLM that is wrapped, or only relied on."""

    module: str
    name: str
    """Class and attribute, with a dot."""
    parameters: tuple[str, ...]
    """Parameters that we use; the row has drifted if one is missing."""
    why: str
    since: str
    """First vLLM version that has it in this form."""
    until: str
    """What makes the row superfluous."""
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Makes the replacement of the original; None: the row is only verified."""
    where: str = FRONTEND

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row: a name that is added to a module of vLLM."""

    module: str
    name: str
    value: Callable[[], Any]
    why: str

    @property
    def target(self) -> str:
        """Full name, for messages."""
        return f"{self.module}.{self.name}"


FIRST_NAMES = "names of vLLM's first input registries, which it removed, for code that was written for them"
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
        "called by generate",
        "0.13",
        PLUGIN_FIRST,
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
        "overridden on a bound engine's client: where it waits, a Ctrl-C comes at once",
        "0.11",
        "vLLM's synchronous engine takes a Ctrl-C at any moment",
    ),
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
