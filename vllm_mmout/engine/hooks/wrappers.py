"""What the hook table puts around vLLM's callables; each runs at the start of an engine only, never for a request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.engine_binding import EngineBinding

Original: TypeAlias = Callable[..., Any]


def create_engine_config(original: Original) -> Original:
    """Fill in the engine arguments of our models before vLLM reads them."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.hooks.defaults import fill_in

        fill_in(self)
        return original(self, *args, **kwargs)

    return wrapper


def async_llm_init(original: Original) -> Original:
    """Resolve the model's output processors first, so that an error starts no process; then bind."""

    @functools.wraps(original)
    def wrapper(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.hooks.bind import bind_async_llm

        if binding := _started(lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=False):
            bind_async_llm(self, binding)

    return wrapper


def llm_engine_init(original: Original) -> Original:
    """Resolve the model's output processors first, so that an error starts no process; then bind."""

    @functools.wraps(original)
    def wrapper(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        from vllm import envs

        from vllm_mmout.engine.hooks.bind import bind_llm_engine

        in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
        if binding := _started(
            lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=in_process
        ):
            bind_llm_engine(self, binding)

    return wrapper


def _started(start: Callable[[], None], vllm_config: VllmConfig, *, in_process: bool) -> EngineBinding | None:
    """Check an engine's options and start it; of one to be bound, raise what its processes tell of a failure."""
    from vllm_mmout.engine.binding import check_extensions, make_binding
    from vllm_mmout.engine.hooks.startup import hearing

    binding = make_binding(vllm_config, in_process=in_process)
    check_extensions(vllm_config, bound=binding is not None)
    with hearing() if binding is not None else nullcontext():
        start()
    return binding


def pooling_offline_init(original: Original) -> Original:
    """Bind the LLM object whose engine is bound."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.hooks.bind import bind_llm

        original(self, *args, **kwargs)
        bind_llm(self)

    return wrapper


def v2_unsupported(original: Original) -> Original:
    """Report what Model Runner V2 cannot run."""

    @functools.wraps(original)
    def wrapper(self: Any) -> list[str]:
        from vllm_mmout.engine.hooks.bind import v1_only_features

        unsupported: list[str] = original(self)
        return [*unsupported, *v1_only_features(self)]

    return wrapper


def worker_init_device(original: Original) -> Original:
    """Bind the worker: its next step is to load the model.

    Not around the ``load_model`` of a platform's worker class: importing that in a frontend costs a second.
    """

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.hooks.bind import bind_worker
        from vllm_mmout.engine.hooks.startup import telling

        with telling():  # before vLLM asks for the model's class, which logs what is wrong with it and does not say it
            bind_worker(self.worker, self.vllm_config)
        return original(self, *args, **kwargs)

    return wrapper


def run_busy_loop(original: Original) -> Original:
    """Bind the core's process before its loop begins."""

    @functools.wraps(original)
    def wrapper(self: Any) -> Any:
        from vllm_mmout.engine.worker.core import bind_core

        bind_core(self)
        return original(self)

    return wrapper


def load_endpoint_plugins(original: Original) -> Original:
    """Add our routes to a server that was started to have them; to any other, nothing."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.hooks.endpoint_plugin import endpoint_plugins, is_switched_on

        return endpoint_plugins(original, *args, **kwargs) if is_switched_on() else original(*args, **kwargs)

    return wrapper
