"""Binding: the objects of one engine change their class; vLLM's classes stay as they are."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import Binding, log_binding, resolve_choice
from vllm_mmout.engine.model_class import config_of
from vllm_mmout.engine.startup import telling
from vllm_mmout.engine.worker_memory import keep_freed_memory
from vllm_mmout.models.announced import serve_announced

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.interrupts import Interrupts
    from vllm_mmout.engine.tokens.binding import TokenBinding


def bind_async_llm(engine: Any, binding: Binding | TokenBinding) -> None:
    """Bind an ``AsyncLLM``."""
    if not isinstance(binding, Binding):
        from vllm_mmout.engine.tokens.async_llm import BoundTokenAsyncLLM

        _bind_tokens(engine, binding)
        engine.__class__ = derived(BoundTokenAsyncLLM, type(engine))
        return
    from vllm_mmout.engine.async_llm import BoundAsyncLLM
    from vllm_mmout.engine.credits import Credits
    from vllm_mmout.engine.gathering import Gathering
    from vllm_mmout.engine.tile_budget import TileBudget

    binding = _with_plugins(engine, binding, engine.shutdown)
    _bind_parts(engine, binding)
    engine.mmout_credits = Credits(binding.max_in_flight, binding.settings.max_in_flight_bytes)
    engine.mmout_readers = asyncio.Semaphore(binding.max_in_flight)
    engine.mmout_budget = TileBudget(binding.max_tiles, binding.settings.max_tile_bytes)
    engine.mmout_gathering = Gathering(binding.max_num_seqs, engine.mmout_budget)
    engine.mmout_scene_slots = asyncio.Semaphore(binding.settings.max_scenes)
    engine.mmout_scenes = set()
    engine.__class__ = derived(BoundAsyncLLM, type(engine))
    log_binding(binding)


def bind_llm_engine(engine: Any, binding: Binding | TokenBinding) -> None:
    """Bind an ``LLMEngine``."""
    from vllm_mmout.engine.interrupts import Interrupts
    from vllm_mmout.engine.llm import BoundLLMEngine

    engine.mmout_interrupts = Interrupts()
    _bind_client(engine.engine_core, engine.mmout_interrupts)
    if not isinstance(binding, Binding):
        from vllm_mmout.engine.tokens.llm import BoundTokenEngine

        _bind_tokens(engine, binding)
        engine.__class__ = derived(BoundTokenEngine, type(engine))
        return
    binding = _with_plugins(engine, binding, engine.engine_core.shutdown)
    _bind_parts(engine, binding)
    engine.__class__ = derived(BoundLLMEngine, type(engine))
    log_binding(binding)


def _bind_client(client: Any, interrupts: Interrupts) -> None:
    """Let a Ctrl-C come at once where an engine in processes of its own is waited for, and its death be noticed there.

    vLLM ends the thread that receives answers when the engine's process was killed; who waits for one would wait for
    ever.
    """
    from vllm.v1.engine.core_client import SyncMPClient
    from vllm.v1.engine.exceptions import EngineDeadError

    if not isinstance(client, SyncMPClient):
        return
    kind = type(client)

    def get_output(self: Any) -> Any:
        with interrupts.let_through():
            return kind.get_output(self)

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        self.outputs_queue.put_nowait(EngineDeadError())
        kind.shutdown(self, *args, **kwargs)

    methods = {"get_output": get_output, "shutdown": shutdown}
    client.__class__ = type(f"Bound{kind.__name__}", (kind,), methods)


def bind_llm(llm: Any) -> None:
    """Bind an ``LLM`` whose engine is bound; leave any other."""
    if not hasattr(llm.llm_engine.output_processor, "binding"):  # no import of ours for a text engine
        return
    if isinstance(llm.llm_engine.output_processor.binding, Binding):
        from vllm_mmout.engine.llm import LLMGenerate

        llm.__class__ = _with_methods(LLMGenerate, type(llm))
    else:
        from vllm_mmout.engine.tokens.llm import LLMTokens

        llm.__class__ = _with_methods(LLMTokens, type(llm))


def bind_worker(worker: Any, vllm_config: VllmConfig) -> None:
    """Bind a worker whose model has an output processor: its model load then puts the reducing pooler in place."""
    serve_announced()
    choice = resolve_choice(vllm_config)
    if choice is None or vllm_config.model_config.runner_type != "pooling":  # tokens are decoded in the frontend
        return
    processors = choice.create(config_of(vllm_config.model_config))
    kind = type(worker)

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.reduce import wrap_pooler

        with telling():
            kind.load_model(self, *args, **kwargs)
            model = self.get_model()
            model.measuring = True
            if hasattr(model, "try_out"):
                model.try_out()
            wrap_pooler(model, processors)
        if vllm_config.device_config.device_type == "cpu":
            keep_freed_memory()

    def compile_or_warm_up_model(self: Any) -> Any:
        result = kind.compile_or_warm_up_model(self)
        self.get_model().measuring = False  # memory has been measured; from now on forward serves requests
        return result

    methods = {"load_model": load_model, "compile_or_warm_up_model": compile_or_warm_up_model}
    worker.__class__ = type(f"Bound{kind.__name__}", (kind,), methods)


def _with_plugins(engine: Any, binding: Binding, end: Callable[[], None]) -> Binding:
    """The binding with the objects of its IO plugins, which need the engine's renderer; where one fails, no engine."""
    if not binding.plugin_classes:
        return binding
    try:
        return binding.with_plugins(engine.vllm_config, engine.renderer)
    except BaseException:
        end()
        raise


def _bind_parts(engine: Any, binding: Binding) -> None:
    """Bind what both kinds of engine have."""
    from vllm_mmout.engine.renderer import NoChat
    from vllm_mmout.engine.routed import RoutedOutputProcessor

    if engine.renderer.tokenizer is None:
        engine.renderer.__class__ = _with_methods(NoChat, type(engine.renderer))
    engine.output_processor.__class__ = RoutedOutputProcessor
    engine.output_processor.setup(binding)
    weakref.finalize(engine, engine.output_processor.close)


def _bind_tokens(engine: Any, binding: TokenBinding) -> None:
    """Bind what both kinds of engine have that generate tokens."""
    from vllm_mmout.engine.tokens.routed import TokenOutputProcessor

    engine.output_processor.__class__ = TokenOutputProcessor
    engine.output_processor.setup(binding)
    weakref.finalize(engine, engine.output_processor.close)
    log_binding(binding)


def derived(ours: type, theirs: type) -> type:
    """The class of a bound engine: ours, or below it the subclass of vLLM's class that the engine had."""
    return ours if issubclass(ours, theirs) else type(f"Bound{theirs.__name__}", (ours, theirs), {})


def _with_methods(mixin: type, theirs: type) -> type:
    """A subclass of ``theirs`` with the mixin's methods; of one base, since the object's layout must stay the same."""
    methods = {name: value for name, value in vars(mixin).items() if inspect.isfunction(value)}
    return type(f"Bound{theirs.__name__}", (theirs,), methods)
