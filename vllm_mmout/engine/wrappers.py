"""What the hook table puts around vLLM's callables; each runs at the start of an engine only, never for a request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Original: TypeAlias = Callable[..., Any]


def create_engine_config(original: Original) -> Original:
    """Fill in the engine arguments of our models before vLLM reads them."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.defaults import fill_in

        fill_in(self)
        return original(self, *args, **kwargs)

    return wrapper


def async_llm_init(original: Original) -> Original:
    """Resolve the model's output processors first, so that an error starts no process; then bind."""

    @functools.wraps(original)
    def wrapper(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.bind import bind_async_llm
        from vllm_mmout.engine.binding import make_binding
        from vllm_mmout.engine.io_plugin import check_plugin

        binding = make_binding(vllm_config)
        check_plugin(vllm_config, bound=binding is not None)
        _start(lambda: original(self, vllm_config, *args, **kwargs), binding)
        if binding is not None:
            bind_async_llm(self, binding)

    return wrapper


def llm_engine_init(original: Original) -> Original:
    """Resolve the model's output processors first, so that an error starts no process; then bind."""

    @functools.wraps(original)
    def wrapper(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        from vllm import envs

        from vllm_mmout.engine.bind import bind_llm_engine
        from vllm_mmout.engine.binding import make_binding
        from vllm_mmout.engine.io_plugin import check_plugin

        binding = make_binding(vllm_config, in_process=not envs.VLLM_ENABLE_V1_MULTIPROCESSING)
        check_plugin(vllm_config, bound=binding is not None)
        _start(lambda: original(self, vllm_config, *args, **kwargs), binding)
        if binding is not None:
            bind_llm_engine(self, binding)

    return wrapper


def _start(original: Callable[[], None], binding: object | None) -> None:
    """Start an engine; of one that is to be bound, raise what its processes tell of a failure."""
    if binding is None:
        original()
        return
    from vllm_mmout.engine.startup import hearing

    with hearing():
        original()


def pooling_offline_init(original: Original) -> Original:
    """Bind the LLM object whose engine is bound."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.bind import bind_llm

        original(self, *args, **kwargs)
        bind_llm(self)

    return wrapper


def io_plugin_init(original: Original) -> Original:
    """Bind what vLLM makes of pooling requests where the plugin is ours."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_mmout.engine.io_plugin import bind_requests

        original(self, *args, **kwargs)
        bind_requests(self)

    return wrapper


def v2_unsupported(original: Original) -> Original:
    """Report what Model Runner V2 cannot run."""

    @functools.wraps(original)
    def wrapper(self: Any) -> list[str]:
        from vllm_mmout.engine.runner import v1_only_features

        unsupported: list[str] = original(self)
        return [*unsupported, *v1_only_features(self)]

    return wrapper


def worker_init_device(original: Original) -> Original:
    """Bind the worker: its next step is to load the model."""

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.bind import bind_worker
        from vllm_mmout.engine.startup import telling

        with telling():  # before vLLM asks for the model's class, which logs what is wrong with it and does not say it
            bind_worker(self.worker, self.vllm_config)
        return original(self, *args, **kwargs)

    return wrapper


def run_busy_loop(original: Original) -> Original:
    """Bind the core's process before its loop begins."""

    @functools.wraps(original)
    def wrapper(self: Any) -> Any:
        from vllm_mmout.engine.core import bind_core

        bind_core(self)
        return original(self)

    return wrapper


def load_endpoint_plugins(original: Original) -> Original:
    """Add our routes to a server that was started to have them; to any other, nothing."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from vllm_mmout.engine.routes import endpoint_plugins, is_switched_on

        return endpoint_plugins(original, *args, **kwargs) if is_switched_on() else original(*args, **kwargs)

    return wrapper


def input_registry() -> Any:
    """The input registry."""
    from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY

    return MULTIMODAL_INPUT_REGISTRY


def output_registry() -> Any:
    """The output registry."""
    from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY

    return MULTIMODAL_OUTPUT_REGISTRY


def first_input_registry(name: str) -> Callable[[], Any]:
    """A decorator of the input registry, under a name that vLLM's own registries had once."""

    def value() -> Any:
        return getattr(input_registry(), name)

    return value


def input_context() -> Any:
    """What functions registered for inputs are called with."""
    from vllm_mmout.models.context import InputContext

    return InputContext


def dummy_data() -> Any:
    """What a function registered for dummy data gives."""
    from vllm_mmout.models.context import DummyData

    return DummyData
