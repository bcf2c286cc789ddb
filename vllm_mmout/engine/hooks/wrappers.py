"""Wrappers around vLLM's callables, installed as hooks. They run only while an engine or a server starts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.binding import EngineBinding

Original: TypeAlias = Callable[..., Any]


def _hook_wrapper(replacement: Callable[..., Any]) -> Callable[[Original], Original]:
    """Return a decorator that redirects calls of a function to ``replacement``.

    The decorated function is passed to ``replacement`` as the first argument.
    """

    @functools.wraps(replacement)
    def wrap(original: Original) -> Original:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        return wrapper

    return wrap


@_hook_wrapper
def create_engine_config(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Set the engine arguments that the model needs, create vLLM's config, and let extension packages change it."""
    from vllm_mmout.engine.hooks.defaults import fill_in
    from vllm_mmout.engine.hooks.unserved_folders import naming_the_argument
    from vllm_mmout.wing import configured

    fill_in(self)
    with naming_the_argument(self.model):
        return configured(original(self, *args, **kwargs))


@_hook_wrapper
def async_llm_init(original: Original, self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
    """Start an ``AsyncLLM``, and make it return decoded results if its model has output processors.

    Wrong options raise before any process is started.
    """
    from vllm_mmout.engine.hooks.bind import bind_async_llm

    if binding := _started(lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=False):
        bind_async_llm(self, binding)


@_hook_wrapper
def llm_engine_init(original: Original, self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
    """Start an ``LLMEngine``, and make it return decoded results if its model has output processors.

    Wrong options raise before any process is started.
    """
    from vllm import envs

    from vllm_mmout.engine.hooks.bind import bind_llm_engine

    in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
    if binding := _started(lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=in_process):
        bind_llm_engine(self, binding)


def _started(start: Callable[[], None], vllm_config: VllmConfig, *, in_process: bool) -> EngineBinding | None:
    """Check an engine's options, then start the engine by calling ``start``.

    Return its `EngineBinding` (output processors and settings), or None for a model that answers in text. If an engine
    with output processors does not start, the error that its processes reported is raised.
    """
    from vllm_mmout.engine.binding import check_extensions, make_binding
    from vllm_mmout.engine.hooks.startup import raising_worker_error
    from vllm_mmout.engine.hooks.unserved_folders import naming_the_argument

    with naming_the_argument(vllm_config.model_config.model):
        binding = make_binding(vllm_config, in_process=in_process)
        check_extensions(vllm_config, bound=binding is not None)
        with raising_worker_error() if binding is not None else nullcontext():
            start()
    return binding


@_hook_wrapper
def pooling_offline_init(original: Original, self: Any, *args: Any, **kwargs: Any) -> None:
    """Create an ``LLM``, and make its ``generate`` return decoded results if the model has output processors.

    If only an extension package could serve the model, errors of ``generate`` name the engine argument for it.
    """
    from vllm_mmout.engine.hooks.bind import bind_llm
    from vllm_mmout.engine.hooks.unserved_folders import bind_left_llm

    original(self, *args, **kwargs)
    bind_llm(self)
    bind_left_llm(self)


@_hook_wrapper
def v2_unsupported(original: Original, self: Any) -> list[str]:
    """Return vLLM's list of features that Model Runner V2 lacks, extended for the models of this package."""
    from vllm_mmout.engine.hooks.bind import v1_only_features

    return [*original(self), *v1_only_features(self)]


@_hook_wrapper
def worker_init_device(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Give a worker the output processors of its model before it loads the model, then call ``original``.

    Wrapping the ``load_model`` of a platform's worker class instead would import that class, which takes a second in a
    frontend.
    """
    from vllm_mmout.engine.hooks.bind import bind_worker
    from vllm_mmout.engine.hooks.startup import reporting_to_frontend

    with reporting_to_frontend():  # vLLM would look up the model's class next, and only log its errors
        bind_worker(self.worker, self.vllm_config)
    return original(self, *args, **kwargs)


@_hook_wrapper
def run_busy_loop(original: Original, self: Any) -> Any:
    """Set up an engine core if its model has output processors. Then run the core's busy loop."""
    from vllm_mmout.engine.worker.core import bind_core

    bind_core(self)
    return original(self)


@_hook_wrapper
def load_endpoint_plugins(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Return vLLM's endpoint plugins. In a server of ``vllm-mmout serve``, add the plugin of this package."""
    from vllm_mmout.engine.hooks.endpoint_plugin import endpoint_plugins, is_switched_on

    return endpoint_plugins(original, *args, **kwargs) if is_switched_on() else original(*args, **kwargs)
