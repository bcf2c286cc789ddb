"""Wrappers that the hook table installs around vLLM's callables. They run only while an engine or a server starts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.binding import EngineBinding

Original: TypeAlias = Callable[..., Any]


def _around(replacement: Callable[..., Any]) -> Callable[[Original], Original]:
    """Turn a function whose first argument is the original callable into a decorator for that callable."""

    @functools.wraps(replacement)
    def wrap(original: Original) -> Original:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        return wrapper

    return wrap


@_around
def create_engine_config(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Set the engine arguments of our models before vLLM reads them. Let extension packages change the config."""
    from vllm_mmout.engine.hooks.defaults import fill_in
    from vllm_mmout.engine.hooks.unserved_folders import naming_the_argument
    from vllm_mmout.wing import configured

    fill_in(self)
    with naming_the_argument(self.model):
        return configured(original(self, *args, **kwargs))


@_around
def async_llm_init(original: Original, self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
    """Find the model's output processors, start the engine, and make it decode outputs.

    Wrong options raise before any process is started.
    """
    from vllm_mmout.engine.hooks.bind import bind_async_llm

    if binding := _started(lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=False):
        bind_async_llm(self, binding)


@_around
def llm_engine_init(original: Original, self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
    """Find the model's output processors, start the engine, and make it decode outputs.

    Wrong options raise before any process is started.
    """
    from vllm import envs

    from vllm_mmout.engine.hooks.bind import bind_llm_engine

    in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
    if binding := _started(lambda: original(self, vllm_config, *args, **kwargs), vllm_config, in_process=in_process):
        bind_llm_engine(self, binding)


def _started(start: Callable[[], None], vllm_config: VllmConfig, *, in_process: bool) -> EngineBinding | None:
    """Check the options of an engine and start it. Return its output processors and settings, or None for a text model.

    If an engine with output processors does not start, the error that its processes reported is raised.
    """
    from vllm_mmout.engine.binding import check_extensions, make_binding
    from vllm_mmout.engine.hooks.startup import hearing
    from vllm_mmout.engine.hooks.unserved_folders import naming_the_argument

    with naming_the_argument(vllm_config.model_config.model):
        binding = make_binding(vllm_config, in_process=in_process)
        check_extensions(vllm_config, bound=binding is not None)
        with hearing() if binding is not None else nullcontext():
            start()
    return binding


@_around
def pooling_offline_init(original: Original, self: Any, *args: Any, **kwargs: Any) -> None:
    """Create an ``LLM`` object. Make its ``generate`` decode outputs if the model has an output processor.

    If only an extension package could serve the model, errors of ``generate`` name the engine argument for it.
    """
    from vllm_mmout.engine.hooks.bind import bind_llm
    from vllm_mmout.engine.hooks.unserved_folders import bind_left_llm

    original(self, *args, **kwargs)
    bind_llm(self)
    bind_left_llm(self)


@_around
def v2_unsupported(original: Original, self: Any) -> list[str]:
    """Return vLLM's list of features that Model Runner V2 lacks, and add features that our models need."""
    from vllm_mmout.engine.hooks.bind import v1_only_features

    return [*original(self), *v1_only_features(self)]


@_around
def worker_init_device(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Give a worker the output processors of its model, if there are any, before it loads the model.

    Wrapping the ``load_model`` of a platform's worker class instead would import that class, which takes a second in a
    frontend.
    """
    from vllm_mmout.engine.hooks.bind import bind_worker
    from vllm_mmout.engine.hooks.startup import telling

    with telling():  # vLLM would look up the model's class next, and only log its errors
        bind_worker(self.worker, self.vllm_config)
    return original(self, *args, **kwargs)


@_around
def run_busy_loop(original: Original, self: Any) -> Any:
    """Run the engine core. If the model has output processors, first add functions such as the time limit of a step."""
    from vllm_mmout.engine.worker.core import bind_core

    bind_core(self)
    return original(self)


@_around
def load_endpoint_plugins(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Return vLLM's endpoint plugins, and the plugin of this package if the server was started with our routes."""
    from vllm_mmout.engine.hooks.endpoint_plugin import endpoint_plugins, is_switched_on

    return endpoint_plugins(original, *args, **kwargs) if is_switched_on() else original(*args, **kwargs)
