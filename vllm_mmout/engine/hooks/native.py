"""Make engines of a patched vLLM return decoded results. The patched vLLM calls this module when an engine starts.

The patches are in ``patches/``. Without them, hooks in the constructors of engines do this.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import EngineBinding, check_extensions, make_binding, rebased
from vllm_mmout.engine.hooks.bind import bind_async_llm, bind_llm, bind_llm_engine
from vllm_mmout.engine.hooks.install import is_installed
from vllm_mmout.engine.hooks.startup import raising_worker_error
from vllm_mmout.importing import import_path

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class StartListener:
    """Mixin for an engine's output processor, with the methods that a patched vLLM calls when the engine starts."""

    start_binding: EngineBinding
    """Output processors and settings of the engine that is starting."""

    def starting(self) -> AbstractContextManager[None]:
        """Return a context manager for an engine's start. A failed start raises the error that a worker reported.

        vLLM's own error is raised if no worker reported an error.
        """
        return raising_worker_error()

    def started(self, engine: Any) -> None:
        """Bind an engine after its start: make an ``AsyncLLM``, ``LLMEngine`` or ``LLM`` return decoded results."""
        kinds = {base.__name__ for base in type(engine).__mro__}  # importing the classes would take a second
        if "AsyncLLM" in kinds:
            bind_async_llm(engine, self.start_binding)
        elif "LLMEngine" in kinds:
            bind_llm_engine(engine, self.start_binding)
        else:
            bind_llm(engine)


def output_router(vllm_config: VllmConfig, *, in_process: bool) -> Callable[..., Any] | None:
    """Return a function that creates an engine's output processor, or None for vLLM's standard class.

    This implements `OutputRegistry.output_router`.
    """
    if not is_installed():  # VLLM_PLUGINS excludes the plugin, or vLLM has drifted
        return None
    from vllm.v1.engine.output_processor import OutputProcessor

    binding = make_binding(vllm_config, in_process=in_process)
    check_extensions(vllm_config, bound=binding is not None)
    if binding is None:
        return None
    router: Any = import_path(binding.output_processor, "class of a bound engine")

    def make(*args: Any, **kwargs: Any) -> Any:
        processor = rebased(StartListener, rebased(router, OutputProcessor))(*args, **kwargs)
        processor.start_binding = binding
        return processor

    return make
